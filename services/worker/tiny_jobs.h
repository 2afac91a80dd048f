// Small jobs for tests.
#pragma once

#include <string>

#include "lib/exchange/fake_ps.h"

namespace muster {

// y = 3 x - 0.5 on 512 samples, batches of 32.
FakePs::Options LinearJob(int workers);

// A one-layer GPT on a text that is made up and written to `path`; a tenth of it is held out.
FakePs::Options TextJob(const std::string& path, int workers);

}  // namespace muster
