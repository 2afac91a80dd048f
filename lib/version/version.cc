#include "lib/version/version.h"

#include "lib/version/version_number.h"

namespace muster {

const char* Version() { return kVersionNumber; }

}  // namespace muster
