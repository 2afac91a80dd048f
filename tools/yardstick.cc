// One unit of work, by which tools/ci_budget.sh measures machines: compiling this file with -O2,
// then running it. No part of Muster uses it. A change of this file changes the unit: then measure
// all budgets of docs/testing.md again.
//
// Compiling exercises headers, templates and the optimiser, which are most of the cost of a build.
// Running sorts, hashes, allocates and multiplies, as tests do.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace {

constexpr int kRounds = 12;
constexpr int64_t kNumbers = 400'000;
constexpr int kWords = 60'000;

// A fixed sequence, so that every run does the same work.
class Sequence {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_ = 1;
};

template <typename T, size_t kSize>
struct Matrix {
  std::array<T, kSize * kSize> values{};

  Matrix operator*(const Matrix& other) const {
    Matrix product;
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t k = 0; k < kSize; ++k) {
        for (size_t j = 0; j < kSize; ++j) {
          product.values[i * kSize + j] += values[i * kSize + k] * other.values[k * kSize + j];
        }
      }
    }
    return product;
  }
};

// Returns the sum of the traces of matrix products, one for each size. Each size instantiates the
// template, which costs compile time.
template <typename T, size_t... kSizes>
double Traces(Sequence& sequence, std::index_sequence<kSizes...>) {
  auto trace = [&]<size_t kSize>() {
    auto left = std::make_unique<Matrix<T, kSize>>();
    auto right = std::make_unique<Matrix<T, kSize>>();
    for (T& value : left->values) value = static_cast<T>(sequence.Next() % 7);
    for (T& value : right->values) value = static_cast<T>(sequence.Next() % 5);
    const auto product = std::make_unique<Matrix<T, kSize>>(*left * *right);
    double sum = 0;
    for (size_t i = 0; i < kSize; ++i) sum += static_cast<double>(product->values[i * kSize + i]);
    return sum;
  };
  return (trace.template operator()<8 * (kSizes + 1)>() + ...);
}

uint64_t SortAndCount(Sequence& sequence) {
  std::vector<std::pair<uint32_t, uint32_t>> numbers(kNumbers);
  for (auto& [key, value] : numbers) key = sequence.Next() % 100'000, value = sequence.Next();
  std::sort(numbers.begin(), numbers.end());
  std::unordered_map<uint32_t, uint64_t> sums;
  for (const auto& [key, value] : numbers) sums[key] += value;
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0},
                         [](uint64_t sum, const auto& entry) { return sum ^ entry.second; });
}

using Value = std::variant<int64_t, double, std::string>;

size_t NameAndMatch(Sequence& sequence) {
  static const std::regex kPattern("([a-z]+)_([0-9]*)7");
  std::map<std::string, Value> values;
  for (int i = 0; i < kWords; ++i) {
    const uint32_t number = sequence.Next() % 1'000'000;
    std::string name = "value_" + std::to_string(number);
    switch (number % 3) {
      case 0:
        values.emplace(std::move(name), int64_t{number});
        break;
      case 1:
        values.emplace(std::move(name), number / 3.0);
        break;
      default:
        values.emplace(name, name + name);
        break;
    }
  }
  size_t matches = 0;
  std::ostringstream text;
  for (const auto& [name, value] : values) {
    std::smatch parts;
    if (name.size() % 4 == 0 && std::regex_match(name, parts, kPattern))
      matches += parts[2].length();
    std::visit([&](const auto& held) { text << held << ' '; }, value);
  }
  return matches + text.str().size();
}

}  // namespace

int main() {
  const std::vector<std::pair<std::string, std::function<double(Sequence&)>>> parts = {
      {"sort",
       [](Sequence& sequence) { return static_cast<double>(SortAndCount(sequence) % 1000); }},
      {"match", [](Sequence& sequence) { return static_cast<double>(NameAndMatch(sequence)); }},
      {"multiply", [](Sequence& sequence) {
         return Traces<double>(sequence, std::make_index_sequence<3>()) +
                Traces<float>(sequence, std::make_index_sequence<3>()) +
                Traces<int32_t>(sequence, std::make_index_sequence<3>());
       }}};
  Sequence sequence;
  for (const auto& [name, part] : parts) {
    double sum = 0;
    for (int round = 0; round < kRounds; ++round) sum += part(sequence);
    std::cout << name << ' ' << sum << '\n';
  }
}
