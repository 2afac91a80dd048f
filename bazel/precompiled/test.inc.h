// messages.inc.h, and what tests include.
#include "bazel/precompiled/messages.inc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
