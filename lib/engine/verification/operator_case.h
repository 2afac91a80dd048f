// One op with its operands and attributes: a row of the tables in this folder.
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

// What an input of the op is, and which values it has.
struct Operand {
  enum class Kind {
    kTrained,    // a parameter: has a gradient
    kRows,       // likewise; its first dimension is the batch
    kStatistic,  // a parameter: receives the statistic
    kInput,      // an input of the graph; the first dimension is the batch
    kIds,        // likewise, of integers
    kConstant,
    kConstantIds,  // of integers
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
  // Uniform in [low, high); standard normal where both are 0. Integers likewise.
  double low = 0;
  double high = 0;
  std::vector<double> values = {};  // or these
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
// Graphs are for any batch: where an op has inputs whose first dimension is the batch, parameters
// of that size would not do, so each sample gathers its row of one.
inline Operand Rows(Operand operand) { return As(Operand::Kind::kRows, std::move(operand)); }
inline Operand Input(Operand operand) { return As(Operand::Kind::kInput, std::move(operand)); }
inline Operand Constant(Operand operand, std::vector<double> values = {}) {
  operand.values = std::move(values);
  return As(Operand::Kind::kConstant, std::move(operand));
}
// In [low, high).
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
  // Where terms cancel or errors grow from step to step, how many times the usual tolerance the
  // results may be off.
  double amplification = 1;

  std::string ToString() const;  // "MatMul([3, 1], [1, 2]) transpose_a=1"
  int outputs() const;
  int64_t batch() const;
};

// The op in a graph of its own. The operands are named "x0", "x1", ..., the outputs "op", "op.1",
// ... The loss is the op's own output when that is one, else the sum over the outputs that enter it
// of the mean squared errors of output - "shift0" against "target0", ...
v1::Graph ToGraph(const OperatorCase& c);

// Values for all inputs and parameters of ToGraph(c), f32; `bits` of significand (24: all of f32).
reference::Tensors GivenTensors(const OperatorCase& c, const v1::Graph& graph, uint64_t seed,
                                int bits = 24);

// A table of this folder. A program tests every family that is linked into it.
struct OperatorFamily {
  OperatorFamily(std::string name, std::vector<OperatorCase> (*cases)());

  std::string name;
  std::vector<OperatorCase> (*cases)();
};
const std::vector<OperatorFamily>& OperatorFamilies();

}  // namespace muster::verification
