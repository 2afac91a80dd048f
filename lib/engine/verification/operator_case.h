// One op with its operands and attributes: a row of the case tables in this folder.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/sketch.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

// An input of the op: its kind, shape and values.
struct Operand {
  enum class Kind {
    kTrained,    // a parameter: has a gradient
    kRows,       // a parameter; its first dimension is the batch
    kStatistic,  // a parameter: it receives the statistic
    kInput,      // an input of the graph; the first dimension is the batch
    kIds,        // an input of the graph, of integers
    kConstant,
    kConstantIds,  // a constant, of integers
  };

  Operand(std::initializer_list<int64_t> shape) : shape(shape) {}
  // NOLINTNEXTLINE: implicit like the one above, so that the tables of cases are lists of shapes.
  Operand(std::vector<int64_t> shape) : shape(std::move(shape)) {}

  bool is_trained() const { return kind == Kind::kTrained || kind == Kind::kRows; }
  bool is_parameter() const { return is_trained() || kind == Kind::kStatistic; }
  bool is_graph_input() const { return kind == Kind::kInput || kind == Kind::kIds; }
  bool is_integer() const { return kind == Kind::kIds || kind == Kind::kConstantIds; }

  Kind kind = Kind::kTrained;
  std::vector<int64_t> shape;
  // Values are uniform in [low, high), or standard normal if both are 0. Integers are drawn the
  // same way.
  double low = 0;
  double high = 0;
  std::vector<double> values = {};  // these values, if not empty
};

inline Operand As(Operand::Kind kind, Operand operand) {
  operand.kind = kind;
  return operand;
}
inline Operand Uniform(Operand operand, double low, double high) {
  operand.low = low;
  operand.high = high;
  return operand;
}
inline Operand Positive(Operand operand) { return Uniform(std::move(operand), 0.5, 2); }
inline Operand Statistic(Operand operand) {
  return As(Operand::Kind::kStatistic, Positive(std::move(operand)));
}
// A parameter with one row per sample of the batch. Graphs must work for any batch, so a parameter
// cannot have the batch as a dimension. Instead each sample gathers its row of the parameter.
inline Operand Rows(Operand operand) { return As(Operand::Kind::kRows, std::move(operand)); }
inline Operand Input(Operand operand) { return As(Operand::Kind::kInput, std::move(operand)); }
inline Operand Constant(Operand operand, std::vector<double> values = {}) {
  operand.values = std::move(values);
  return As(Operand::Kind::kConstant, std::move(operand));
}
// Integers in [low, high).
inline Operand Ids(Operand operand, double low, double high) {
  return As(Operand::Kind::kIds, Uniform(std::move(operand), low, high));
}
inline Operand Ids(Operand operand, std::vector<double> values) {
  operand.values = std::move(values);
  return As(Operand::Kind::kIds, std::move(operand));
}
inline Operand ConstantIds(Operand operand, double low, double high) {
  return As(Operand::Kind::kConstantIds, Uniform(std::move(operand), low, high));
}

struct OperatorCase {
  std::string op;
  std::vector<Operand> inputs;
  SketchAttributes attributes = {};
  std::vector<int> losses = {0};  // the outputs that enter the loss; empty: not differentiable
  // The results may be off by this many times the usual tolerance. More than 1 if terms cancel, or
  // if errors grow from step to step.
  double amplification = 1;

  std::string ToString() const;  // "MatMul([3, 1], [1, 2]) transpose_a=1"
  int outputs() const;
  int64_t batch() const;
};

// Returns a graph that has the op alone. The operands are named "x0", "x1", ..., the outputs "op",
// "op.1", ... If the op is a loss, its output is the loss. Otherwise each output in `losses` adds a
// mean squared error of output - "shift0" against "target0", ...
v1::Graph ToGraph(const OperatorCase& c);

// Returns f32 values for all inputs and parameters of ToGraph(c), with `bits` of significand (24:
// all of f32).
reference::Tensors GivenTensors(const OperatorCase& c, const v1::Graph& graph, uint64_t seed,
                                int bits = 24);

// A case table of this folder. A test program runs every family that is linked into it.
struct OperatorFamily {
  OperatorFamily(std::string name, std::vector<OperatorCase> (*cases)());

  std::string name;
  std::vector<OperatorCase> (*cases)();
};
const std::vector<OperatorFamily>& OperatorFamilies();

}  // namespace muster::verification
