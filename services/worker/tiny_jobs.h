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

}  // namespace muster
