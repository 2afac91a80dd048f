#!/usr/bin/env python3
"""Makes the files of examples/data/bert from examples/data/licences: pre-training data for BERT in TFRecord files.

    examples/data/make_bert.py

The features are those that Google's create_pretraining_data.py writes. The words are whole words in lower case, the most
frequent ones of the text, because the text is short. Needs nothing but Python.
"""

import collections
import pathlib
import random
import re
import struct

HERE = pathlib.Path(__file__).parent
CONTEXT, VOCABULARY, MASKED = 64, 2048, 10
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
EXAMPLES = 400  # in each file


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def table_entry(value):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = [table_entry(byte) for byte in range(256)]


def masked_crc(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values):
    """Returns a tf.train.Feature with a FloatList or an Int64List, packed."""
    if isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(map(varint, values))))


def example(features):
    entries = (field(1, field(1, name.encode()) + field(2, feature(values))) for name, values in sorted(features.items()))
    return field(1, b"".join(entries))


def record(data):
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def padded(values, length, pad=0):
    return values + [pad] * (length - len(values))


def pair(sentences, dice):
    """Returns the ids of two sentences with their marks, the segments, and whether the second one is random."""
    at = dice.randrange(len(sentences) - 1)
    is_random = dice.random() < 0.5
    first, second = sentences[at][:], (dice.choice(sentences) if is_random else sentences[at + 1])[:]
    while len(first) + len(second) > CONTEXT - 3:
        (first if len(first) > len(second) else second).pop()
    return [CLS] + first + [SEP] + second + [SEP], [0] * (len(first) + 2) + [1] * (len(second) + 1), int(is_random)


def masked(ids, dice):
    """Masks 15 % of the words as Devlin et al. do: 80 % as [MASK], 10 % as a random word, 10 % unchanged."""
    places = [place for place, word in enumerate(ids) if word not in (CLS, SEP)]
    positions = sorted(dice.sample(places, max(1, min(MASKED, round(0.15 * len(places))))))
    originals = [ids[position] for position in positions]
    for position in positions:
        chance = dice.random()
        if chance < 0.9:
            ids[position] = MASK if chance < 0.8 else dice.randrange(MASK + 1, VOCABULARY)
    return positions, originals


def main():
    dice = random.Random(1)
    texts = [path.read_text(errors="replace").lower() for path in sorted((HERE / "licences").iterdir())]
    count = collections.Counter(word for text in texts for word in re.findall(r"[a-z]+|[.,;:()]", text))
    ids = {word: MASK + 1 + rank for rank, (word, _) in enumerate(count.most_common(VOCABULARY - MASK - 1))}
    sentences = [[ids.get(word, UNKNOWN) for word in words] for text in texts for part in re.split(r"(?<=[.;:])\s", text)
                 if len(words := re.findall(r"[a-z]+|[.,;:()]", part)) > 4]
    for name in ("train-0.tfrecord", "train-1.tfrecord"):
        with open(HERE / "bert" / name, "wb") as file:
            for _ in range(EXAMPLES):
                words, segments, is_random = pair(sentences, dice)
                mask = [1] * len(words)
                positions, originals = masked(words, dice)
                file.write(record(example({
                    "input_ids": padded(words, CONTEXT), "input_mask": padded(mask, CONTEXT), "segment_ids": padded(segments, CONTEXT),
                    "masked_lm_positions": padded(positions, MASKED), "masked_lm_ids": padded(originals, MASKED),
                    "masked_lm_weights": padded([1.0] * len(positions), MASKED, 0.0), "next_sentence_labels": [is_random]})))


if __name__ == "__main__":
    main()
