// Builds graphs for tests in a few lines.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

// An attribute, written as in ops.md: {"groups", 2}, {"epsilon", 1e-3}, {"to", "i32"}, {"strides",
// {2, 1}}, {"values", {0.5, 1.5}}.
struct SketchAttribute {
  std::string name;
  v1::Attribute value;

  SketchAttribute(std::string name, int value);
  SketchAttribute(std::string name, double value);
  SketchAttribute(std::string name, const char* value);
  SketchAttribute(std::string name, std::initializer_list<int> values);
  SketchAttribute(std::string name, std::initializer_list<double> values);
  SketchAttribute(std::string name, const std::vector<int64_t>& values);
  SketchAttribute(std::string name, const std::vector<double>& values);
};

using SketchAttributes = std::vector<SketchAttribute>;

class Sketch {
 public:
  // Adds an input. The batch, -1, comes before the shape of a sample. Returns the name, as all of
  // these functions do.
  std::string Input(std::string name, std::vector<int64_t> sample, v1::DType = v1::DTYPE_F32);
  std::string Ids(std::string name, std::vector<int64_t> sample);

  // Adds a parameter. Its initial values are normal with standard deviation `scale`.
  std::string Parameter(std::string name, std::vector<int64_t> shape, double scale = 0.5);
  std::string Statistic(std::string name, std::vector<int64_t> shape);

  // Adds a node with outputs "name", "name.1", ... and returns the first.
  std::string Add(std::string name, std::string op, std::vector<std::string> inputs,
                  SketchAttributes attributes = {}, int outputs = 1);
  std::string Loss(std::string op, std::string output, std::string target,
                   SketchAttributes attributes = {});

  v1::Graph graph;
};

}  // namespace muster::verification
