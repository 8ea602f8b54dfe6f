# SPDX-License-Identifier: Apache-2.0
# Load and speed of the server. Included by the Makefile.
.PHONY: bench-server
$(B)/tests/load/grpc_load: $(B)/tests/load/grpc_load.o $(call obj_of,tools/load/plugin) $(addprefix $(B)/obj/gen/,grpc_service.pb-c.o model_config.pb-c.o) \
                           $(OBJ_base)
	$(link)
	$(Q)$(CC) -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) -lgrpc -lgpr -lprotobuf-c $(LIBS_base)

$(B)/tests/load/chat_load: $(B)/tests/load/chat_load.o
	$(link)
	$(Q)$(CC) -o $@ $< $(NRD_LDFLAGS) $(LDFLAGS)

$(B)/tests/load/responder: $(B)/tests/load/responder.o
	$(link)
	$(Q)$(CC) -o $@ $< $(NRD_LDFLAGS) $(LDFLAGS)

bench-server: server $(if $(HAVE_GRPC),$(B)/tests/load/grpc_load) ## Speed of the server; TRITONSERVER=program compares with another one, BENCH="options of bench_server.py"
	$(Q)$(PYTHON) tests/load/bench_server.py $(if $(TRITONSERVER),--theirs $(TRITONSERVER)) $(BENCH)
