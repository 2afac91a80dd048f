// Small jobs for tests.
#pragma once

#include <string>

#include "lib/exchange/fake_ps.h"

namespace muster {

// Returns a job that fits y = 3 x - 0.5 on 512 samples in batches of 32.
FakePs::Options LinearJob(int workers);

// Returns a job that trains a one-layer GPT. Writes a synthetic text to `path`; a tenth is held
// out.
FakePs::Options TextJob(const std::string& path, int workers);

// A program computes the gradients of this job: parameters "w" and "b" of a line, and "frozen" with
// 3 elements. The batch has 32 samples.
FakePs::Options ProgramJob(int workers);

}  // namespace muster
