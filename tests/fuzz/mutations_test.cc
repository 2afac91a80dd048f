// Runs a fuzz target without libFuzzer. Mutates and truncates its seeds at random, in the same way
// in each run. To run more inputs with other random numbers:
//   INPUTS=5000 SEED=7 bazel test //tests/fuzz:directive_fuzz_test --test_env=INPUTS
//   --test_env=SEED
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster::mutations_test {
namespace {

// Values that often break readers of text and numbers.
const char* const kTokens[] = {"0",
                               "-1",
                               "1",
                               "9223372036854775807",
                               "-9223372036854775808",
                               "18446744073709551616",
                               "1e999",
                               ".5",
                               "\"",
                               "\\u0000",
                               "{",
                               "}",
                               "[",
                               "]",
                               ":",
                               ",",
                               "\n",
                               "null",
                               "true",
                               "&a",
                               "*a",
                               "\xff",
                               "../",
                               "/"};

int FromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

int Inputs() { return FromEnvironment("INPUTS", FuzzTestInputs()); }

// Returns the seed, and prints it before the first input, because after a crash nothing can print
// it.
int Seed() {
  const int seed = FromEnvironment("SEED", 20261123);
  std::cout << "SEED=" << seed << std::endl;
  return seed;
}

std::string Mutated(std::string bytes, const std::vector<std::string>& seeds,
                    std::mt19937& random) {
  auto at = [&](size_t size) { return size == 0 ? 0 : random() % size; };
  for (int count = 1 + static_cast<int>(random() % 4); count > 0; --count) {
    const size_t place = at(bytes.size() + 1), length = std::min(at(16), bytes.size() - place);
    const std::string& other = seeds[at(seeds.size())];
    switch (random() % 7) {
      case 0:
        if (place < bytes.size()) bytes[place] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        if (place < bytes.size()) bytes[place] = static_cast<char>(random());
        break;
      case 2:
        bytes.erase(place, length);
        break;
      case 3:
        bytes.insert(place, bytes.substr(at(bytes.size()), at(64)));
        break;
      case 4:
        bytes.replace(place, length, kTokens[at(std::size(kTokens))]);
        break;
      case 5:
        bytes.replace(place, length, other.substr(at(other.size()), at(64)));
        break;
      case 6:
        if (random() % 8 == 0) bytes.resize(place);
        break;
    }
  }
  return bytes;
}

TEST(MutationsTest, SeedsAreTaken) {
  const std::vector<std::string> seeds = FuzzSeeds();
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i) {
    EXPECT_TRUE(FuzzOne(seeds[i])) << "seed " << i << ": " << seeds[i].substr(0, 200);
  }
}

TEST(MutationsTest, WhateverComesIsTakenOrRefused) {
  std::mt19937 random(Seed());
  const std::vector<std::string> seeds = FuzzSeeds();
  int taken = 0;
  for (int i = 0; i < Inputs(); ++i) {
    taken += FuzzOne(Mutated(seeds[random() % seeds.size()], seeds, random));
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, Inputs());
}

TEST(MutationsTest, WhatIsCutIsTakenOrRefused) {
  std::mt19937 random(Seed() + 1);
  const std::vector<std::string> seeds = FuzzSeeds();
  FuzzOne("");
  for (int i = 0; i < Inputs() / 8; ++i) {
    const std::string& seed = seeds[random() % seeds.size()];
    FuzzOne(seed.substr(0, random() % (seed.size() + 1)));
  }
}

}  // namespace
}  // namespace muster::mutations_test
