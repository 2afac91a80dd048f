// api.inc.h, and headers that tests include.
#include "bazel/precompiled/api.inc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
