#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# Builds every fuzz target into $OUT, with its seeds. From outside come CC, CXX, CFLAGS, CXXFLAGS,
# LIB_FUZZING_ENGINE, SRC, WORK and OUT. JOBS and ONLY ("json http") are for trying it by hand.
cd "${SRC:?}/nereid"

make -j"${JOBS:-$(nproc)}" fuzz-build F="${WORK:?}/fuzz" FUZZ_ONLY="${ONLY:-}" \
    FUZZ_CC="$CC" FUZZ_LD="$CXX $CXXFLAGS" FUZZ_SAN="$CFLAGS" FUZZ_ENGINE="$LIB_FUZZING_ENGINE"

cp -r "$WORK"/fuzz/bin/* "${OUT:?}/"

# Targets run in an image without these libraries; they look for them beside themselves.
mkdir -p "$OUT/lib"
for program in "$OUT"/fuzz_*; do
    ldd "$program" | sed -n 's/^[[:space:]]*\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p'
done | sort -u | while read -r name path; do
    case $name in
        libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
        *) [ -e "$OUT/lib/$name" ] || cp -L "$path" "$OUT/lib/$name" ;;
    esac
done

for seeds in tests/fuzz/corpus/*; do
    target=$(basename "$seeds")
    if [ -e "$OUT/fuzz_$target" ]; then
        rm -f "$OUT/fuzz_${target}_seed_corpus.zip"
        (cd "$seeds" && zip -q -r "$OUT/fuzz_${target}_seed_corpus.zip" .)
    fi
done
