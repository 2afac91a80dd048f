#include "kernels/cuda/movement.h"

#include "kernels/cuda/cumulative_sum.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/indexed_elements.h"
#include "kernels/cuda/reduction.h"
#include "kernels/cuda/top_k.h"
#include "kernels/cumulative_sum.h"
#include "kernels/dropout.h"
#include "kernels/top_k.h"

namespace muster::kernels::cuda::emulation::movement_test {
namespace {

TEST(MovementTest, TransposesInTilesAndInWords) {
  const std::vector<int64_t> shapes[] = {{2, 33, 70}, {3, 5, 8}, {1, 64, 32}, {2, 1, 9}};
  ForEveryRun([&](Type type) {
    for (const std::vector<int64_t>& s : shapes) {
      const int64_t n = s[0] * s[1] * s[2];
      const Floats x = Rounded(Normals(n, 1), type);
      DeviceMemory x_on(x, type), y(n * Bytes(type));
      // y[b, j, i] = x[b, i, j]
      const View to = {0, {s[1] * s[2], 1, s[1]}}, from = {0, RowMajorStrides(s)};
      ASSERT_EQ(CopyBox(y.data(), to, x_on.data(), from, s, static_cast<int>(Bytes(type)), nullptr),
                cudaSuccess);
      const Floats actual = y.Read(type);
      for (int64_t b = 0, i = 0; b < s[0]; ++b) {
        for (int64_t row = 0; row < s[1]; ++row) {
          for (int64_t column = 0; column < s[2]; ++column, ++i) {
            ASSERT_EQ(actual[(b * s[2] + column) * s[1] + row], x[i]);
          }
        }
      }
    }
  });
}

TEST(MovementTest, PadsChannelsAndRemovesThePadding) {
  ForEveryRun([&](Type type) {
    if (Bytes(type) != 2) return;
    for (const FewChannels& s : {FewChannels{2, 3, 35}, FewChannels{1, 8, 300},
                                 FewChannels{300, 1, 1}, FewChannels{2, 5, 257}}) {
      const Floats planes = Rounded(Normals(s.batch * s.channels * s.pixels, 1), type);
      DeviceMemory planes_on(planes, type), pixels(s.padded_bytes());
      DeviceMemory back(planes.size() * Bytes(type));
      ASSERT_EQ(PadChannels(pixels.data(), planes_on.data(), s, nullptr), cudaSuccess);
      const Floats padded = pixels.Read(type);
      for (int64_t b = 0, i = 0; b < s.batch; ++b) {
        for (int64_t p = 0; p < s.pixels; ++p) {
          for (int64_t c = 0; c < kChannelsOfPixel; ++c, ++i) {
            const int64_t at = (b * s.channels + c) * s.pixels + p;
            ASSERT_EQ(padded[i], c < s.channels ? planes[at] : 0) << b << ", " << p << ", " << c;
          }
        }
      }
      ASSERT_EQ(TakeChannels(back.data(), pixels.data(), s, nullptr), cudaSuccess);
      EXPECT_EQ(back.Read(type), planes);
    }
  });
}

TEST(CombineTest, OperandsRepeatAlongTheirMissingDimensions) {
  ForEveryRun([](Type type) {
    for (int64_t inner : {3, 8, 12}) {
      const Floats a = Rounded(Normals(2 * 5 * inner, 1), type);
      const Floats b = Rounded(Normals(2 * inner, 2), type), c = Rounded(Normals(5, 3), type);
      DeviceMemory a_on(a, type), b_on(b, type), c_on(c, type);
      DeviceMemory sum(a.size() * Bytes(type)), product(a.size() * Bytes(type));
      ASSERT_EQ(
          Combine(Combination::kSub, sum.data(), type,
                  {{a_on.data(), {2, 5, inner}}, {b_on.data(), {2, 1, inner}}}, type, nullptr),
          cudaSuccess);
      ASSERT_EQ(Combine(Combination::kMul, product.data(), type,
                        {{a_on.data(), {2, 5, inner}}, {c_on.data(), {5, 1}}}, type, nullptr),
                cudaSuccess);
      std::vector<double> differences, products;
      for (int64_t i = 0; i < 2 * 5 * inner; ++i) {
        differences.push_back(double{a[i]} - b[i / (5 * inner) * inner + i % inner]);
        products.push_back(double{a[i]} * c[i / inner % 5]);
      }
      ExpectRounded(sum.Read(type), differences, type);
      ExpectRounded(product.Read(type), products, type);
    }
  });
}

TEST(CombineTest, MinimaRemaindersAndComparisons) {
  ForEveryRun([](Type type) {
    for (int64_t inner : {3, 8}) {
      const int64_t n = 5 * inner;
      Floats a = Rounded(Normals(n, 1), type), b = Rounded(Normals(inner, 2), type);
      for (int64_t i = 0; i < inner; i += 2) a[i] = b[i];  // equals
      const Floats dy = Rounded(Normals(n, 3), type);
      DeviceMemory a_on(a, type), b_on(b, type), dy_on(dy, type);
      const auto run = [&](Combination f, Type y_type, bool with_dy) {
        std::vector<BroadcastOperand> operands = {{a_on.data(), {5, inner}},
                                                  {b_on.data(), {inner}}};
        if (with_dy) operands.insert(operands.begin(), {dy_on.data(), {5, inner}});
        DeviceMemory y(n * Bytes(y_type));
        EXPECT_EQ(Combine(f, y.data(), y_type, operands, type, nullptr), cudaSuccess);
        return y.Read(y_type);
      };
      std::vector<double> minima, rests, gradients;
      Floats less, equal;
      for (int64_t i = 0; i < n; ++i) {
        const double own = a[i], other = b[i % inner];
        minima.push_back(std::min(own, other));
        rests.push_back(own - other * std::floor(own / other));
        gradients.push_back(own > other ? dy[i] : own == other ? 0.5 * dy[i] : 0);
        less.push_back(own < other ? 1 : 0);
        equal.push_back(own == other ? 1 : 0);
      }
      ExpectRounded(run(Combination::kMinimum, type, false), minima, type);
      ExpectRounded(run(Combination::kMod, type, false), rests, type);
      ExpectRounded(run(Combination::kMaximumGrad, type, true), gradients, type);
      EXPECT_EQ(run(Combination::kLess, Type::kI32, false), less);
      EXPECT_EQ(run(Combination::kEqual, Type::kI32, false), equal);
    }
  });
}

// The operands include 16777217 and 16777216, which are equal as f32.
TEST(CombineTest, IntegersWrapAroundAndAreDividedByZero) {
  const std::vector<int32_t> a = {INT32_MIN, INT32_MAX, -7, 7, 5, INT32_MIN, 100000, 16777217};
  const std::vector<int32_t> b = {-1, 1, 3, -3, 0, 1, 100000, 16777216};
  DeviceMemory a_on(a), b_on(b), y(4 * 8);
  const auto run = [&](Combination f) {
    EXPECT_EQ(Combine(f, y.data(), Type::kI32, {{a_on.data(), {8}}, {b_on.data(), {8}}}, Type::kI32,
                      nullptr),
              cudaSuccess);
    return std::vector<int32_t>(y.ints(), y.ints() + 8);
  };
  using Integers = std::vector<int32_t>;
  EXPECT_EQ(run(Combination::kAdd),
            (Integers{INT32_MAX, INT32_MIN, -4, 4, 5, INT32_MIN + 1, 200000, 33554433}));
  EXPECT_EQ(run(Combination::kSub),
            (Integers{INT32_MIN + 1, INT32_MAX - 1, -10, 10, 5, INT32_MAX, 0, 1}));
  EXPECT_EQ(run(Combination::kMul),
            (Integers{INT32_MIN, INT32_MAX, -21, -21, 0, INT32_MIN, 1410065408, 16777216}));
  EXPECT_EQ(run(Combination::kDiv), (Integers{INT32_MIN, INT32_MAX, -2, -2, 0, INT32_MIN, 1, 1}));
  EXPECT_EQ(run(Combination::kMod), (Integers{0, 0, 2, -2, 0, 0, 0, 1}));
  EXPECT_EQ(run(Combination::kMaximum), (Integers{-1, INT32_MAX, 3, 7, 5, 1, 100000, 16777217}));
  EXPECT_EQ(run(Combination::kEqual), (Integers{0, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(run(Combination::kLessOrEqual), (Integers{1, 0, 1, 0, 0, 1, 1, 0}));
  ASSERT_EQ(Apply(Function::kAbs, y.data(), a_on.data(), 8, Type::kI32, nullptr), cudaSuccess);
  EXPECT_EQ(y.ints()[2], 7);
  EXPECT_EQ(y.ints()[0], INT32_MIN);
  ASSERT_EQ(Apply(Function::kNeg, y.data(), a_on.data(), 8, Type::kI32, nullptr), cudaSuccess);
  EXPECT_EQ(y.ints()[3], -7);
  EXPECT_EQ(Combine(Combination::kPow, y.data(), Type::kI32,
                    {{a_on.data(), {8}}, {b_on.data(), {8}}}, Type::kI32, nullptr),
            cudaErrorInvalidValue);
}

TEST(ReductionTest, SumsAndMaximaOverInnerAndOuterDimensions) {
  const ReductionShape shapes[] = {{{3, 37, 5}, {false, true, false}},
                                   {{3, 300, 7}, {false, true, true}},
                                   {{4200}, {true}},
                                   {{130, 33}, {true, false}}};
  ForEveryRun([&](Type type) {
    for (const ReductionShape& shape : shapes) {
      const int64_t n = shape.outputs() * shape.reductions();
      Floats x = Normals(n, 1);
      for (float& v : x) v = std::round(4 * v) / 4;
      std::vector<double> sums(shape.outputs(), 0), maxima(shape.outputs(), -INFINITY);
      std::vector<int64_t> output_of(n);
      for (int64_t i = 0; i < n; ++i) {
        int64_t rest = i, stride = 1;
        for (size_t d = shape.sizes.size(); d-- > 0;) {
          if (!shape.reduced[d]) {
            output_of[i] += rest % shape.sizes[d] * stride;
            stride *= shape.sizes[d];
          }
          rest /= shape.sizes[d];
        }
        sums[output_of[i]] += x[i];
        maxima[output_of[i]] = std::max<double>(maxima[output_of[i]], x[i]);
      }
      DeviceMemory x_on(x, type), sum(4 * shape.outputs());
      DeviceMemory maximum(Bytes(type) * shape.outputs()), spread(Bytes(type) * n);
      DeviceMemory workspace(ReductionWorkspaceBytes(shape));
      ASSERT_EQ(Sum(sum.data(), Type::kF32, x_on.data(), type, 1, shape, workspace.data(), nullptr),
                cudaSuccess);
      ASSERT_EQ(Maximum(maximum.data(), x_on.data(), type, shape, workspace.data(), nullptr),
                cudaSuccess);
      ASSERT_EQ(Spread(spread.data(), maximum.data(), type, 1, shape, nullptr), cudaSuccess);
      ExpectClose(sum.Read(Type::kF32), sums, shape.reductions());
      ExpectRounded(maximum.Read(type), maxima, type);
      const Floats actual = spread.Read(type);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(actual[i], maxima[output_of[i]]);
    }
  });
}

TEST(CumulativeSumTest, MatchesTheCpu) {
  ForEveryRun([](Type type) {
    for (CumulativeShape shape : {CumulativeShape{3, 70, 1}, CumulativeShape{2, 33, 5},
                                  CumulativeShape{2, 7, 37}, CumulativeShape{1, 1, 1}}) {
      for (int kind = 0; kind < 4; ++kind) {
        shape.exclusive = kind % 2 == 1;
        shape.reverse = kind / 2 == 1;
        const int64_t n = shape.outer * shape.size * shape.inner;
        const kernels::CumulativeShape on_cpu = {shape.outer, shape.size, shape.inner,
                                                 shape.exclusive, shape.reverse};
        const Floats x = Rounded(Normals(n, 1), type);
        Floats expected(n);
        kernels::CumulativeSum(expected.data(), x.data(), on_cpu);
        DeviceMemory x_on(x, type), y(n * Bytes(type));
        ASSERT_EQ(CumulativeSum(y.data(), x_on.data(), type, shape, nullptr), cudaSuccess);
        ExpectRounded(y.Read(type), Wide(expected), type, shape.size);

        const std::vector<int32_t> ids = RandomIds(n, INT32_MAX, 2);
        std::vector<int32_t> sums(n);
        kernels::CumulativeSum(sums.data(), ids.data(), on_cpu);
        DeviceMemory ids_on(ids);  // in place
        ASSERT_EQ(CumulativeSum(ids_on.data(), ids_on.data(), Type::kI32, shape, nullptr),
                  cudaSuccess);
        ASSERT_EQ(std::memcmp(ids_on.data(), sums.data(), 4 * n), 0);
      }
    }
  });
}

TEST(GatherTest, SlicesByIndexAndTheirGradientsInTheOrderOfTheIndices) {
  ForEveryRun([](Type type) {
    // Sorts by two digits, in several chunks of pairs.
    for (const GatherShape& shape : {GatherShape{1, 300, 3, 1030}, GatherShape{2, 300, 16, 70}}) {
      const int64_t outer = shape.outer, size = shape.size, inner = shape.inner;
      const int64_t indices = shape.indices;
      const Floats x = Rounded(Normals(outer * size * inner, 1), type);
      const Floats dy = Rounded(Normals(outer * indices * inner, 2), type);
      const std::vector<int32_t> ids = RandomIds(indices, size, 3);
      Floats y(dy.size());
      std::vector<double> dx(x.size(), 0.0);
      for (int64_t i = 0; i < outer * indices * inner; ++i) {
        const int64_t slice = i / (indices * inner) * size + ids[i / inner % indices];
        y[i] = x[slice * inner + i % inner];
        dx[slice * inner + i % inner] += dy[i];
      }
      DeviceMemory x_on(x, type), dy_on(dy, type), ids_on(ids), wrong(std::vector<int32_t>(2));
      DeviceMemory y_on(dy.size() * Bytes(type)), dx_on(x.size() * Bytes(type));
      DeviceMemory workspace(GatherGradWorkspaceBytes(shape));
      ASSERT_EQ(Gather(y_on.data(), x_on.data(), ids_on.ints(), shape,
                       static_cast<int>(Bytes(type)), wrong.out_of_range(), nullptr),
                cudaSuccess);
      ASSERT_EQ(GatherGrad(dx_on.data(), dy_on.data(), ids_on.ints(), type, shape, workspace.data(),
                           nullptr),
                cudaSuccess);
      EXPECT_EQ(y_on.Read(type), y);
      EXPECT_EQ(wrong.out_of_range()->found, 0);
      ExpectRounded(dx_on.Read(type), dx, type, 16);
    }
  });
}

// Shapes of tensor and index, with and without dimensions that can be merged; several chunks to
// sort.
struct IndexedShape {
  std::vector<int64_t> tensor;
  std::vector<int64_t> index;
  int64_t axis;

  // Returns the element of the tensor for each element of the index, and sets `ids` to matching ids
  // of both signs.
  std::vector<int64_t> Targets(std::vector<int32_t>& ids) const {
    int64_t n = 1;
    for (int64_t size : index) n *= size;
    ids = RandomIds(n, 2 * tensor[axis], 3);
    std::vector<int64_t> targets(n);
    for (int64_t i = 0; i < n; ++i) {
      ids[i] -= static_cast<int32_t>(tensor[axis]);
      int64_t rest = i, stride = 1;
      for (int64_t d = std::ssize(tensor) - 1; d >= 0; --d) {
        const int64_t place = d == axis ? (ids[i] + tensor[d]) % tensor[d] : rest % index[d];
        targets[i] += place * stride;
        rest /= index[d];
        stride *= tensor[d];
      }
    }
    return targets;
  }
};

const IndexedShape kIndexedShapes[] = {{{5}, {1100}, 0},          {{4, 70, 5}, {4, 33, 5}, 1},
                                       {{6, 4, 3}, {8, 2, 3}, 0}, {{4, 3, 6, 5}, {2, 3, 7, 4}, 2},
                                       {{4, 5, 6}, {3, 2, 7}, 2}, {{3, 9}, {3, 4}, 1}};

TEST(IndexedElementsTest, GathersElementsAndSumsGradientsInIndexOrder) {
  ForEveryRun([](Type type) {
    for (const IndexedShape& shape : kIndexedShapes) {
      std::vector<int32_t> ids;
      const std::vector<int64_t> targets = shape.Targets(ids);
      const IndexedElements elements(shape.tensor, shape.index, shape.axis);
      ASSERT_EQ(elements.indices, std::ssize(targets));
      const Floats x = Rounded(Normals(elements.tensor_elements, 1), type);
      const Floats dy = Rounded(Normals(elements.indices, 2), type);
      Floats y(dy.size());
      std::vector<double> dx(x.size(), 0.0);
      for (size_t i = 0; i < y.size(); ++i) {
        y[i] = x[targets[i]];
        dx[targets[i]] += dy[i];
      }
      DeviceMemory x_on(x, type), dy_on(dy, type), ids_on(ids), wrong(std::vector<int32_t>(2));
      DeviceMemory y_on(dy.size() * Bytes(type)), dx_on(x.size() * Bytes(type));
      DeviceMemory workspace(GatherElementsGradWorkspaceBytes(elements));
      ASSERT_EQ(GatherElements(y_on.data(), x_on.data(), ids_on.ints(), elements,
                               static_cast<int>(Bytes(type)), wrong.out_of_range(), nullptr),
                cudaSuccess);
      ASSERT_EQ(GatherElementsGrad(dx_on.data(), dy_on.data(), ids_on.ints(), type, elements,
                                   workspace.data(), nullptr),
                cudaSuccess);
      EXPECT_EQ(y_on.Read(type), y);
      EXPECT_EQ(wrong.out_of_range()->found, 0);
      ExpectRounded(dx_on.Read(type), dx, type, 256);
    }
  });
}

TEST(IndexedElementsTest, TheLastUpdateWinsAndGetsTheGradient) {
  ForEveryRun([](Type type) {
    const int bytes = static_cast<int>(Bytes(type));
    for (const IndexedShape& shape : kIndexedShapes) {
      std::vector<int32_t> ids;
      const std::vector<int64_t> targets = shape.Targets(ids);
      const IndexedElements elements(shape.tensor, shape.index, shape.axis);
      const Floats data = Rounded(Normals(elements.tensor_elements, 1), type);
      const Floats updates = Rounded(Normals(elements.indices, 2), type);
      const Floats dy = Rounded(Normals(elements.tensor_elements, 4), type);
      Floats y = data, ddata = dy, dupdates(updates.size(), 0);
      std::vector<size_t> last(y.size());
      for (size_t i = 0; i < updates.size(); ++i) {
        y[targets[i]] = updates[i];
        ddata[targets[i]] = 0;
        last[targets[i]] = i;
      }
      for (size_t i = 0; i < updates.size(); ++i) {
        if (last[targets[i]] == i) dupdates[i] = dy[targets[i]];
      }
      DeviceMemory data_on(data, type), updates_on(updates, type), dy_on(dy, type), ids_on(ids);
      DeviceMemory y_on(data.size() * bytes), ddata_on(data.size() * bytes);
      DeviceMemory dupdates_on(updates.size() * bytes), wrong(std::vector<int32_t>(2));
      DeviceMemory workspace(ScatterElementsWorkspaceBytes(elements, ScatterReduction::kNone));
      ASSERT_EQ(ScatterElements(y_on.data(), data_on.data(), ids_on.ints(), updates_on.data(), type,
                                elements, ScatterReduction::kNone, workspace.data(),
                                wrong.out_of_range(), nullptr),
                cudaSuccess);
      ASSERT_EQ(ScatterElementsGradData(ddata_on.data(), dy_on.data(), ids_on.ints(), elements,
                                        bytes, nullptr),
                cudaSuccess);
      ASSERT_EQ(ScatterElementsGradUpdates(dupdates_on.data(), dy_on.data(), ids_on.ints(),
                                           elements, bytes, workspace.data(), nullptr),
                cudaSuccess);
      EXPECT_EQ(y_on.Read(type), y);
      EXPECT_EQ(ddata_on.Read(type), ddata);
      EXPECT_EQ(dupdates_on.Read(type), dupdates);
      EXPECT_EQ(wrong.out_of_range()->found, 0);
    }
  });
}

TEST(IndexedElementsTest, UpdatesAreAddedAndRoundedOnce) {
  ForEveryRun([](Type type) {
    for (const IndexedShape& shape : kIndexedShapes) {
      std::vector<int32_t> ids;
      const std::vector<int64_t> targets = shape.Targets(ids);
      const IndexedElements elements(shape.tensor, shape.index, shape.axis);
      const Floats data = Rounded(Normals(elements.tensor_elements, 1), type);
      const Floats updates = Rounded(Normals(elements.indices, 2), type);
      std::vector<double> y = Wide(data);
      std::vector<int32_t> counts(data.size(), 7);
      for (size_t i = 0; i < updates.size(); ++i) {
        y[targets[i]] += updates[i];
        ++counts[targets[i]];
      }
      DeviceMemory data_on(data, type), updates_on(updates, type), ids_on(ids);
      DeviceMemory y_on(data.size() * Bytes(type)), wrong(std::vector<int32_t>(2));
      DeviceMemory sevens(std::vector<int32_t>(data.size(), 7)), counts_on(4 * data.size());
      DeviceMemory ones(std::vector<int32_t>(updates.size(), 1));
      DeviceMemory workspace(ScatterElementsWorkspaceBytes(elements, ScatterReduction::kAdd));
      ASSERT_EQ(ScatterElements(y_on.data(), data_on.data(), ids_on.ints(), updates_on.data(), type,
                                elements, ScatterReduction::kAdd, workspace.data(),
                                wrong.out_of_range(), nullptr),
                cudaSuccess);
      ASSERT_EQ(ScatterElements(counts_on.data(), sevens.data(), ids_on.ints(), ones.data(),
                                Type::kI32, elements, ScatterReduction::kAdd, workspace.data(),
                                wrong.out_of_range(), nullptr),
                cudaSuccess);
      ExpectRounded(y_on.Read(type), y, type, 256);
      EXPECT_EQ(std::vector<int32_t>(counts_on.ints(), counts_on.ints() + counts.size()), counts);
      EXPECT_EQ(wrong.out_of_range()->found, 0);
    }
  });
}

TEST(IndexedElementsTest, ReportsAnIndexOutOfRange) {
  using enum ScatterReduction;
  const IndexedElements elements({3}, {2}, 0);
  for (int32_t id : {3, -4}) {
    DeviceMemory x(Floats{1, 2, 3}, Type::kF32), updates(Floats{4, 5}, Type::kF32), y(12);
    DeviceMemory ids(std::vector<int32_t>{-3, id});
    DeviceMemory wrong(std::vector<int32_t>(6));
    OutOfRange* flag = wrong.out_of_range();
    ASSERT_EQ(GatherElements(y.data(), x.data(), ids.ints(), elements, 4, flag, nullptr),
              cudaSuccess);
    for (ScatterReduction reduction : {kNone, kAdd}) {
      DeviceMemory workspace(ScatterElementsWorkspaceBytes(elements, reduction));
      ASSERT_EQ(ScatterElements(y.data(), x.data(), ids.ints(), updates.data(), Type::kF32,
                                elements, reduction, workspace.data(), ++flag, nullptr),
                cudaSuccess);
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(wrong.out_of_range()[i].found, 1) << i;
      EXPECT_EQ(wrong.out_of_range()[i].id, id) << i;
    }
  }
}

TEST(TopKTest, MatchesTheCpuAndRoutesGradientsBack) {
  ForEveryRun([](Type type) {
    for (const TopKShape& shape : {TopKShape{3, 7, 1, true}, TopKShape{2, 300, 300, false},
                                   TopKShape{3, 700, 40, true}, TopKShape{1, 1, 1, false}}) {
      Floats x = Rounded(Normals(shape.rows * shape.columns, 1), type);
      for (float& v : x) v = std::round(8 * v) / 8;  // many elements are equal, and some are -0
      if (x.size() > 9) {
        x[9] = NAN;
        x[4] = -INFINITY;
        x[6] = 0;
      }
      const int64_t n = shape.rows * shape.chosen;
      const Floats dy = Rounded(Normals(n, 2), type);
      Floats values(n), dx(x.size());
      std::vector<int32_t> index(n);
      const kernels::TopKShape cpu = {shape.rows, shape.columns, shape.chosen, shape.largest};
      kernels::TopK(values.data(), index.data(), x.data(), cpu);
      kernels::TopKGrad(dx.data(), dy.data(), index.data(), cpu);
      DeviceMemory x_on(x, type), dy_on(dy, type), index_on(4 * n), values_on(n * Bytes(type));
      DeviceMemory dx_on(x.size() * Bytes(type)), workspace(TopKWorkspaceBytes(shape));
      ASSERT_EQ(TopK(values_on.data(), index_on.ints(), x_on.data(), type, shape, workspace.data(),
                     nullptr),
                cudaSuccess);
      ASSERT_EQ(TopKGrad(dx_on.data(), dy_on.data(), index_on.ints(), type, shape, nullptr),
                cudaSuccess);
      EXPECT_EQ(std::vector<int32_t>(index_on.ints(), index_on.ints() + n), index);
      EXPECT_EQ(dx_on.Read(type), dx);
      const Floats actual = values_on.Read(type);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(actual[i] == values[i] || (std::isnan(actual[i]) && std::isnan(values[i])));
      }
    }
  });
}

TEST(DropoutTest, DropsTheSameElementsAsTheCpu) {
  ForEveryRun([](Type type) {
    const DropoutKey key = {.seed = 7, .step = 11, .salt = 3};
    for (int64_t samples : {1, 206}) {
      const int64_t n = 5 * samples;
      const Floats x = Rounded(Normals(n, 1), type);
      Floats expected(n);
      kernels::Dropout(expected.data(), x.data(), n, /*first_element=*/15, 0.3f, key);
      RunNumbers numbers = {.samples = samples, .first_position = 3, .seed = 7, .step = 11};
      DeviceMemory x_on(x, type);
      ASSERT_EQ(Dropout(x_on.data(), x_on.data(), n, type, {0.3f, DropoutThreshold(0.3f), 3},
                        &numbers, nullptr),
                cudaSuccess);
      ExpectRounded(x_on.Read(type), Wide(expected), type);
    }
  });
}

// A sample has two rows of 71 elements. The parts have one column, or begin and end inside a group
// of four.
TEST(DropoutTest, APartOfTheColumnsHasItsPartOfTheMask) {
  constexpr int64_t kSamples = 3, kRows = 2 * kSamples, kWhole = 71, kFirstPosition = 5;
  ForEveryRun([&](Type type) {
    const DropoutKey key = {.seed = 7, .step = 11, .salt = 3};
    for (const DropoutPart& part : {DropoutPart{1, 0, kWhole}, {38, 1, kWhole}, {32, 39, kWhole}}) {
      SCOPED_TRACE(testing::Message() << "from column " << part.first);
      const int64_t n = kRows * part.columns;
      const Floats x = Rounded(Normals(n, 1), type);
      Floats expected(n);
      kernels::DropoutOfPart(expected.data(), x.data(), kRows,
                             {.columns = part.columns, .first = part.first, .whole = kWhole},
                             /*first_element=*/kFirstPosition * 2 * kWhole, 0.3f, key);
      const RunNumbers numbers = {
          .samples = kSamples, .first_position = kFirstPosition, .seed = 7, .step = 11};
      DeviceMemory x_on(x, type);
      ASSERT_EQ(DropoutOfPart(x_on.data(), x_on.data(), kRows, part, type,
                              {0.3f, DropoutThreshold(0.3f), 3}, &numbers, nullptr),
                cudaSuccess);
      ExpectRounded(x_on.Read(type), Wide(expected), type);
    }
  });
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::movement_test
