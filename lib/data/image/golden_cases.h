// Reads the goldens of testdata/make_goldens.py.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "glog/logging.h"

namespace muster {

// One line: a name and words of the form key=value.
struct GoldenCase {
  std::string name;
  std::map<std::string, std::string> words;

  const std::string& Word(const std::string& key) const {
    const auto found = words.find(key);
    CHECK(found != words.end()) << name << " has no " << key;
    return found->second;
  }
  int Number(const std::string& key) const { return std::atoi(Word(key).c_str()); }
  double Real(const std::string& key) const { return std::strtod(Word(key).c_str(), nullptr); }

  // Returns a word in hexadecimal as bytes.
  std::string Bytes(const std::string& key) const {
    const std::string& digits = Word(key);
    std::string bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
    return bytes;
  }
};

inline std::vector<GoldenCase> ReadGoldens(const std::string& name) {
  std::ifstream file("lib/data/image/testdata/" + name);
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    GoldenCase& golden = cases.emplace_back();
    words >> golden.name;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      golden.words[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  CHECK(!cases.empty()) << name;
  return cases;
}

}  // namespace muster
