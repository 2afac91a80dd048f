#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/loop_nest.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction_loop.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;

void Map2(ElementwiseLoop* loop, float* y, const Operand& a, const Operand& b) {
  MapElements(loop, y, BroadcastShape(a.dimensions, b.dimensions), a, b);
}

// Passes integers as floats. The integer loops read only the bits.
Operand Bits(const IntegerOperand& x) {
  return {reinterpret_cast<const float*>(x.data), x.dimensions};
}
float* Bits(int32_t* y) { return reinterpret_cast<float*>(y); }

void SumMapped(ElementwiseLoop* loop, float* y, Dimensions to, const Operand& dy,
               const Operand& other) {
  SumElements(y, to, dy.dimensions, {.loop = loop, .sources = 2, .operands = {dy, other}});
}

void SumMapped(ElementwiseLoop* loop, float* y, Dimensions to, const Operand& dy, const Operand& a,
               const Operand& b) {
  SumElements(y, to, dy.dimensions, {.loop = loop, .sources = 3, .operands = {dy, a, b}});
}

}  // namespace

void Add(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().add, y, a, b); }
void Sub(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().sub, y, a, b); }
void Mul(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().mul, y, a, b); }
void Div(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().div, y, a, b); }
void Pow(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().pow, y, a, b); }

void Minimum(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().minimum, y, a, b); }
void Maximum(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().maximum, y, a, b); }
void Mod(float* y, const Operand& a, const Operand& b) { Map2(Elementwise().mod, y, a, b); }

void Equal(int32_t* y, const Operand& a, const Operand& b) {
  Map2(Elementwise().is_equal, Bits(y), a, b);
}
void Less(int32_t* y, const Operand& a, const Operand& b) {
  Map2(Elementwise().is_less, Bits(y), a, b);
}
void LessOrEqual(int32_t* y, const Operand& a, const Operand& b) {
  Map2(Elementwise().is_less_or_equal, Bits(y), a, b);
}

void Equal(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().is_equal_i32, Bits(y), Bits(a), Bits(b));
}
void Less(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().is_less_i32, Bits(y), Bits(a), Bits(b));
}
void LessOrEqual(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().is_less_or_equal_i32, Bits(y), Bits(a), Bits(b));
}
void Add(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().add_i32, Bits(y), Bits(a), Bits(b));
}
void Sub(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().sub_i32, Bits(y), Bits(a), Bits(b));
}
void Mul(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().mul_i32, Bits(y), Bits(a), Bits(b));
}
void Div(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().div_i32, Bits(y), Bits(a), Bits(b));
}
void Mod(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().mod_i32, Bits(y), Bits(a), Bits(b));
}
void Minimum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().minimum_i32, Bits(y), Bits(a), Bits(b));
}
void Maximum(int32_t* y, const IntegerOperand& a, const IntegerOperand& b) {
  Map2(Elementwise().maximum_i32, Bits(y), Bits(a), Bits(b));
}
void Neg(int32_t* y, const int32_t* x, int64_t n) {
  const int32_t zero = 0;
  Sub(y, {&zero, {}}, {x, {&n, 1}});
}
void Abs(int32_t* y, const int32_t* x, int64_t n) {
  MapElements(Elementwise().abs_i32, Bits(y), {&n, 1}, Bits({x, {&n, 1}}));
}

void Where(float* y, const int32_t* condition, Dimensions condition_dimensions, const Operand& a,
           const Operand& b) {
  MapElements(Elementwise().where, y,
              BroadcastShape(condition_dimensions, a.dimensions, b.dimensions),
              Bits({condition, condition_dimensions}), a, b);
}

void Expand(void* y, Dimensions to, const void* x, Dimensions from) {
  MapElements(Elementwise().copy, static_cast<float*>(y), to, {static_cast<const float*>(x), from});
}

void SumTo(float* da, Dimensions to, const Operand& dy) {
  if (da == dy.data) return;
  SumElements(da, to, dy.dimensions, {.operands = {dy}});
}

void NegSumTo(float* db, Dimensions to, const Operand& dy) {
  const float minus_one = -1;
  if (Elements(to) == Elements(dy.dimensions)) return Mul(db, dy, {&minus_one, {}});
  SumElements(db, to, dy.dimensions, {.operands = {dy}, .factor = -1});
}

void MulGrad(float* da, Dimensions to, const Operand& dy, const Operand& other) {
  SumMapped(Elementwise().mul, da, to, dy, other);
}

void DivGradA(float* da, Dimensions to, const Operand& dy, const Operand& b) {
  SumMapped(Elementwise().div, da, to, dy, b);
}

void DivGradB(float* db, const Operand& dy, const Operand& a, const Operand& b) {
  SumMapped(Elementwise().div_grad_b, db, b.dimensions, dy, a, b);
}

void PowGradA(float* da, const Operand& dy, const Operand& a, const Operand& b) {
  SumMapped(Elementwise().pow_grad_a, da, a.dimensions, dy, a, b);
}

void PowGradB(float* db, const Operand& dy, const Operand& a, const Operand& b) {
  SumMapped(Elementwise().pow_grad_b, db, b.dimensions, dy, a, b);
}

void MinimumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b) {
  SumMapped(Elementwise().minimum_grad, da, a.dimensions, dy, a, b);
}

void MaximumGrad(float* da, const Operand& dy, const Operand& a, const Operand& b) {
  SumMapped(Elementwise().maximum_grad, da, a.dimensions, dy, a, b);
}

void WhereGradA(float* da, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions) {
  SumMapped(Elementwise().where_grad_a, da, to, dy, Bits({condition, condition_dimensions}));
}

void WhereGradB(float* db, Dimensions to, const Operand& dy, const int32_t* condition,
                Dimensions condition_dimensions) {
  SumMapped(Elementwise().where_grad_b, db, to, dy, Bits({condition, condition_dimensions}));
}

void Accumulate(float* y, std::span<const float* const> terms, int64_t n) {
  if (terms.size() == 1) {
    if (y != terms[0]) std::memcpy(y, terms[0], n * sizeof(float));
    return;
  }
  constexpr int64_t kBlock = 1024;  // the sum so far stays in the first-level cache
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    float partial[kBlock];
    for (; begin < end; begin += kBlock) {
      const int64_t count = std::min(kBlock, end - begin);
      const float* sum = terms[0] + begin;
      for (size_t i = 1; i < terms.size(); ++i) {
        const float* sources[] = {sum, terms[i] + begin};
        float* to = i + 1 == terms.size() ? y + begin : partial;
        Elementwise().add(to, sources, /*repeats=*/0, count);
        sum = to;
      }
    }
  });
}

void Scale(float* y, const float* x, float factor, int64_t n) {
  Mul(y, {x, {&n, 1}}, {&factor, {}});
}

void SumRows(float* sum, const float* x, int64_t rows, int64_t n) {
  const int64_t dimensions[] = {rows, n};
  SumTo(sum, {&n, 1}, {x, dimensions});
}

}  // namespace muster::kernels
