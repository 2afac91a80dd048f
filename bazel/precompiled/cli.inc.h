// grpc.inc.h, and what commands include.
#include "CLI/CLI.hpp"
#include "bazel/precompiled/grpc.inc.h"
