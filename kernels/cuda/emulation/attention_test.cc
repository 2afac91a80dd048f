#include "kernels/cuda/attention.h"

#include "kernels/attention.h"
#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/emulation/device_memory.h"

namespace muster::kernels::cuda::emulation::attention_test {
namespace {

constexpr int64_t kGap = 8;  // elements between the rows of q, k and v

struct Case {
  int64_t batch, queries, keys, heads, channels, values;
  bool causal, masked;
  float sign = 1;  // sign of the scale: tensor cores need a positive one
};
// The cases have partly filled blocks of queries and tiles of keys, more queries than keys and the
// reverse, heads narrower than a tile, and both widths of tiles. There are few cases because
// emulated products are slow.
constexpr Case kTileCases[] = {
    {1, 1, 1, 1, 64, 64, true, false},   {1, 131, 131, 1, 64, 64, true, false},
    {2, 33, 20, 2, 40, 56, false, true}, {1, 70, 133, 1, 64, 64, true, false},
    {1, 66, 50, 1, 64, 48, true, true},  {1, 67, 70, 1, 128, 96, true, false},
};
constexpr Case kRowCases[] = {
    {1, 33, 40, 2, 20, 12, true, true},
    {1, 40, 33, 1, 64, 64, true, false, -1},
};

// Spreads rows of `width` elements to a distance of `row`, and the reverse.
Floats Spread(const Floats& dense, int64_t width, int64_t row) {
  Floats wide(dense.size() / width * row, 0.0f);
  for (size_t i = 0; i < dense.size(); ++i) wide[i / width * row + i % width] = dense[i];
  return wide;
}
Floats Gathered(const Floats& wide, int64_t width, int64_t row) {
  Floats dense(wide.size() / row * width);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = wide[i / width * row + i % width];
  return dense;
}

// Probabilities and gradients of scores are rounded to the type before the second product. The
// error of a sum of some hundreds of them stays below a few units of the largest result.
void ExpectNear(const Floats& actual, const Floats& expected, Type type) {
  float largest = 0.5f;
  for (float v : expected) largest = std::max(largest, std::abs(v));
  const float unit = type == Type::kBf16 ? 0x1p-8f : type == Type::kF16 ? 0x1p-11f : 0x1p-18f;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 4 * unit * largest) << i << " of " << actual.size();
  }
}

void ExpectStatistics(const Floats& actual, const Floats& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (expected[i] == -INFINITY) {
      ASSERT_EQ(actual[i], -INFINITY) << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << i;
    }
  }
}

void ExpectThatOfTheCpu(const Case& c, Type type) {
  SCOPED_TRACE(testing::Message() << c.queries << " x " << c.keys << ", " << c.channels);
  const int64_t of_q = c.heads * c.channels, of_v = c.heads * c.values;
  const float scale = c.sign / std::sqrt(static_cast<float>(c.channels));
  const Floats q = Rounded(Normals(c.batch * c.queries * of_q, 1), type);
  const Floats k = Rounded(Normals(c.batch * c.keys * of_q, 2), type);
  const Floats v = Rounded(Normals(c.batch * c.keys * of_v, 3), type);
  const Floats dy = Rounded(Normals(c.batch * c.queries * of_v, 4), type);
  Floats mask = Normals(c.queries * c.keys, 5);
  for (float& m : mask) {
    if (m > 1) m = -INFINITY;
  }
  const int64_t statistics = c.batch * c.heads * c.queries;
  Floats y(dy.size()), lse(statistics), dq(q.size()), dk(k.size()), dv(v.size());
  const kernels::AttentionShape on_cpu = {c.batch, c.queries, c.keys,   c.heads,
                                          of_q,    of_v,      c.causal, scale};
  const std::vector<int64_t> mask_shape = {1, 1, c.queries, c.keys};
  const kernels::AttentionMask cpu_mask =
      c.masked ? kernels::AttentionMask(mask.data(), mask_shape) : kernels::AttentionMask();
  kernels::Attention(y.data(), lse.data(), q.data(), k.data(), v.data(), cpu_mask, on_cpu);

  const AttentionShape shape = {c.batch,     c.queries, c.keys,      c.heads,
                                c.channels,  c.values,  of_q + kGap, of_q + kGap,
                                of_v + kGap, c.causal,  scale,       type};
  DeviceMemory q_on(Spread(q, of_q, shape.q_row), type);
  DeviceMemory k_on(Spread(k, of_q, shape.k_row), type);
  DeviceMemory v_on(Spread(v, of_v, shape.v_row), type), dy_on(dy, type);
  const AttentionInputs inputs = {
      q_on.data(), k_on.data(), v_on.data(),
      c.masked ? AttentionMask{mask.data(), 0, 0, c.keys} : AttentionMask{}};
  DeviceMemory y_on(y.size() * Bytes(type)), lse_on(4 * statistics);
  ASSERT_EQ(Attention(y_on.data(), lse_on.floats(), inputs, shape, nullptr), cudaSuccess);
  ExpectNear(y_on.Read(type), y, type);
  ExpectStatistics(lse_on.Read(Type::kF32), lse);

  kernels::AttentionGrad(dq.data(), dk.data(), dv.data(), dy.data(), q.data(), k.data(), v.data(),
                         y.data(), lse.data(), cpu_mask, on_cpu);
  DeviceMemory dq_on(Floats(q_on.Read(type).size()), type);
  DeviceMemory dk_on(Floats(k_on.Read(type).size()), type);
  DeviceMemory dv_on(Floats(v_on.Read(type).size()), type), workspace(4 * statistics);
  ASSERT_EQ(AttentionGrad({dq_on.data(), dk_on.data(), dv_on.data()}, dy_on.data(), y_on.data(),
                          lse_on.floats(), inputs, shape, workspace.floats(), nullptr),
            cudaSuccess);
  ExpectNear(Gathered(dq_on.Read(type), of_q, shape.q_row), dq, type);
  ExpectNear(Gathered(dk_on.Read(type), of_q, shape.k_row), dk, type);
  ExpectNear(Gathered(dv_on.Read(type), of_v, shape.v_row), dv, type);
}

// Runs every case twice: with copies that arrive at once, and with copies that arrive as late as
// possible.
TEST(AttentionTest, TensorCoresMatchTheCpu) {
  for (const Case& c : kTileCases) {
    SetThreadOrder(ThreadOrder::kAscending);
    ExpectThatOfTheCpu(c, Type::kBf16);
    SetThreadOrder(ThreadOrder::kDescending);
    ExpectThatOfTheCpu(c, Type::kF16);
  }
  SetThreadOrder(ThreadOrder::kAscending);
}

TEST(AttentionTest, RowKernelsMatchTheCpu) {
  ForEveryRun([](Type type) {
    for (const Case& c : kRowCases) ExpectThatOfTheCpu(c, type);
  });
}

TEST(AttentionMaskTest, MakesMasksFinite) {
  const Floats mask = {0, -INFINITY, -3e38f, 2, -1e9f};
  DeviceMemory on(mask, Type::kF32), finite(4 * 5);
  ASSERT_EQ(MakeMaskFinite(finite.floats(), on.floats(), 5, nullptr), cudaSuccess);
  EXPECT_EQ(finite.Read(Type::kF32), (Floats{0, kUnseenScore, kUnseenScore, 2, -1e9f}));
}

// 2 samples, 2 heads and 3 queries; the last query of head 0 of sample 1 sees no key.
TEST(AttentionMaskTest, QueriesWithoutKeysGetZeroAndNoWeight) {
  AttentionShape shape = {.batch = 2, .queries = 3, .heads = 2, .head_values = 8};
  Floats y(2 * 3 * 2 * 8), lse(2 * 2 * 3, 1.5f);
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i + 1);
  const int64_t unseeing = (1 * 2 + 0) * 3 + 2;
  lse[unseeing] = kUnseenScore;
  DeviceMemory y_on(y, Type::kBf16), lse_on(lse, Type::kF32);
  ASSERT_EQ(ClearUnseeingQueries(y_on.data(), lse_on.floats(), shape, nullptr), cudaSuccess);
  lse[unseeing] = INFINITY;
  std::fill_n(y.begin() + ((1 * 3 + 2) * 2 + 0) * 8, 8, 0.0f);
  EXPECT_EQ(lse_on.Read(Type::kF32), lse);
  EXPECT_EQ(y_on.Read(Type::kBf16), y);
}

TEST(AttentionTest, TilesCoverVisibleElementsAndOpenTilesHoldNoOthers) {
  for (bool causal : {false, true}) {
    for (int queries : {1, 63, 64, 65, 130, 200}) {
      for (int keys : {1, 63, 64, 65, 130, 200}) {
        const Causality seen = {queries, keys, causal};
        const auto sees = [&](int t, int key) {
          return key < keys && (!causal || key <= t + keys - queries);
        };
        for (int rows : {16, 32, 64, 128}) {
          for (int first = 0; first < 256; first += rows) {
            const Tiles of_keys = KeyTiles(seen, first, rows);
            for (int key = 0; key < 256; ++key) {
              const int tile = key / kTile;
              for (int t = first; t < std::min(first + rows, queries); ++t) {
                ASSERT_EQ(sees(t, key), key < seen.VisibleKeys(t));
                if (sees(t, key)) {
                  ASSERT_LT(tile, of_keys.end);
                } else {
                  ASSERT_FALSE(of_keys.IsOpen(tile) && tile < of_keys.end);
                }
              }
            }
            const Tiles of_queries = QueryTiles(seen, first, rows);
            for (int t = 0; t < queries; ++t) {
              const int tile = t / kTile;
              const bool computed = tile >= of_queries.begin && tile < of_queries.end;
              for (int key = first; key < std::min(first + rows, keys); ++key) {
                ASSERT_EQ(sees(t, key), t >= seen.FirstQuery(key));
                if (sees(t, key)) {
                  ASSERT_TRUE(computed);
                } else {
                  ASSERT_FALSE(computed && of_queries.IsOpen(tile));
                }
              }
            }
          }
        }
      }
    }
  }
}

// GPT-2 with 1,024 tokens: only the diagonal's tiles need a mask, and none beyond it is computed.
TEST(AttentionTest, OnlyTheDiagonalIsMasked) {
  const Causality seen = {1024, 1024, true};
  int computed = 0, masked = 0;
  for (int first = 0; first < 1024; first += kTile) {
    const Tiles tiles = KeyTiles(seen, first, kTile);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      ++computed;
      masked += !tiles.IsOpen(tile);
    }
  }
  EXPECT_EQ(computed, 16 * 17 / 2);
  EXPECT_EQ(masked, 16);
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::attention_test
