#pragma once

#include <cstdint>
#include <string>

namespace muster {

// Returns how many logical workers each worker computes, by rank: "4, 2, 2". Of more than 16
// workers only the least and the most: "8 to 16 each". Requires: 1 <= workers <= logical.
std::string LogicalWorkersOfEach(int64_t logical, int64_t workers);

}  // namespace muster
