// Jobs that read files: one for each source of `data:`, with a model that fits it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster {

constexpr int kInputBatch = 16;

// Samples [first, first + samples) of a job that counts how often each one is trained.
struct CountedSamples {
  int first = 0;
  int samples = 0;
};

struct InputSource {
  std::string name;
  std::string model;        // after "model: "
  std::string data;         // lines below "data:"
  std::string training;     // fields of "training: {}"
  int steps = 0;            // of one or two seconds together
  std::string folder = {};  // of the files of "csv"
  // The samples to train on, by part of a mixture. Empty: the job does not count.
  std::vector<CountedSamples> counted = {};
};

// Returns the source with this name in a job file ("csv"). Writes its files into a new folder of
// the test, except for those of examples/data. Fails the test if it cannot.
InputSource MakeInputSource(const std::string& name);

// Returns the names that MakeInputSource() knows.
std::vector<std::string> InputSourceNames();

// Returns how often each sample of a job that counts was trained, from its parameters.
std::vector<int64_t> TimesTrained(const std::map<std::string, std::vector<float>>& parameters);

}  // namespace muster
