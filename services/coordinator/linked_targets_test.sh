#!/bin/sh
# Checks that the coordinator links no library that decodes images: it checks data of all users. Argument: the list of targets.
set -eu
grep -q '^//lib/data/source:dataset_check$' "$1" # the list is the right one
if grep -E '^(@system//:(jpeg|png|webp)|//lib/data/image(/decode:decode|:image))$' "$1"; then
  echo "the coordinator must not link the targets above" >&2
  exit 1
fi
