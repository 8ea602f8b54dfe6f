# SPDX-License-Identifier: Apache-2.0
"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of a text against a reference, as F-measures from 0 to 1.

Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004: section 2 (n-grams), 3.1 (longest common
subsequence), 3.2 (its union over sentences). Words, as in Google's rouge_score without a stemmer: runs of a-z and 0-9
in lower case. Sentences of ROUGE-Lsum are lines.
"""
import collections
import re

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def words(text):
    return re.findall("[a-z0-9]+", text.lower())


def f_measure(hits, n_reference, n_prediction):
    if hits == 0:
        return 0.0
    recall, precision = hits / n_reference, hits / n_prediction
    return 2 * precision * recall / (precision + recall)


def of_ngrams(reference, prediction, n):
    def count(tokens):
        return collections.Counter(tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1))

    r, p = count(reference), count(prediction)
    return f_measure(sum((r & p).values()), sum(r.values()), sum(p.values()))


def common_positions(reference, prediction):
    """Where the words of one longest common subsequence stand in the reference. Of several it is the one that
    rouge_score finds: from the end, a step back in the reference before one in the prediction where both are as long."""
    table = [[0] * (len(prediction) + 1)]
    for word in reference:
        row, above = [0], table[-1]
        for k, other in enumerate(prediction):
            row.append(above[k] + 1 if word == other else max(above[k + 1], row[k]))
        table.append(row)
    found, i, k = [], len(reference), len(prediction)
    while i > 0 and k > 0:
        if reference[i - 1] == prediction[k - 1]:
            i, k = i - 1, k - 1
            found.append(i)
        elif table[i][k - 1] > table[i - 1][k]:
            k -= 1
        else:
            i -= 1
    return found


def of_subsequence(reference, prediction):
    return f_measure(len(common_positions(reference, prediction)), len(reference), len(prediction))


def of_sentences(reference, prediction):
    """Lists of sentences, each a list of words. A word counts at most as often as it stands in either text."""
    left = (collections.Counter(w for s in reference for w in s) & collections.Counter(w for s in prediction for w in s))
    hits = 0
    for sentence in reference:
        for i in sorted({i for other in prediction for i in common_positions(sentence, other)}):
            if left[sentence[i]] > 0:
                left[sentence[i]] -= 1
                hits += 1
    return f_measure(hits, sum(map(len, reference)), sum(map(len, prediction)))


def scores(reference, prediction):
    """{name: F-measure}"""
    r, p = words(reference), words(prediction)
    return {"rouge1": of_ngrams(r, p, 1), "rouge2": of_ngrams(r, p, 2), "rougeL": of_subsequence(r, p),
            "rougeLsum": of_sentences(*([words(line) for line in text.split("\n")] for text in (reference, prediction)))}
