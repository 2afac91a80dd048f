#!/usr/bin/env python3
"""Converts a Hugging Face data set of texts for a language model: tokens.npy i32[samples, CONTEXT], and next.npy, one token later.

  hugging_face_text.py DATASET TOKENIZER.JSON CONTEXT       needs numpy, datasets and tokenizers

DATASET is a name on the hub or a folder of Parquet, CSV or JSON files. Its column `text` is read. TOKENIZER.JSON is the file
of that name beside every model on the hub. A text ends with token 0: change END to the token of your tokenizer.
"""

import sys

import numpy
from datasets import load_dataset
from tokenizers import Tokenizer

END = 0

name, tokenizer_file, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = Tokenizer.from_file(tokenizer_file)
stream = []
for batch in load_dataset(name, split="train").iter(batch_size=1000):
    for encoded in tokenizer.encode_batch(batch["text"]):
        stream.append(numpy.array([*encoded.ids, END], "<i4"))
tokens = numpy.concatenate(stream)

samples = (len(tokens) - 1) // context
order = numpy.random.default_rng(seed=1).permutation(samples)
for file, first in (("tokens.npy", 0), ("next.npy", 1)):
    numpy.save(file, tokens[first:first + samples * context].reshape(samples, context)[order])
print(f"{samples} samples, vocabulary {tokenizer.get_vocab_size()}")
