// Entry point for libFuzzer. Writes the seeds to the first folder of the command line, even if the
// folder has files. A corpus of an older program then gets the seeds of the newer one.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  namespace fs = std::filesystem;
  for (int i = 1; i < *argc; ++i) {
    const fs::path folder = (*argv)[i];
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    int number = 0;
    for (const std::string& seed : muster::FuzzSeeds()) {
      std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::FuzzOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
