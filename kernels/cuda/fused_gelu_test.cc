#include "kernels/cuda/fused_gelu.h"

#include <gtest/gtest.h>

namespace muster::kernels::cuda::fused_gelu_test {
namespace {

TEST(FusedGeluTest, SixteenBitsMayUseTheLibrary) {
  EXPECT_TRUE(LibraryHasGelu(Type::kBf16, /*is_exact=*/false, /*columns=*/3072));
  EXPECT_TRUE(LibraryHasGelu(Type::kF16, /*is_exact=*/false, /*columns=*/8));
}

TEST(FusedGeluTest, F32MayNotUseTheLibrary) {
  EXPECT_FALSE(LibraryHasGelu(Type::kF32, /*is_exact=*/false, /*columns=*/3072));
}

TEST(FusedGeluTest, ErfAndRowsThatAreNotMultiplesOfEightUseOurKernel) {
  EXPECT_FALSE(LibraryHasGelu(Type::kBf16, /*is_exact=*/true, /*columns=*/3072));
  EXPECT_FALSE(LibraryHasGelu(Type::kBf16, /*is_exact=*/false, /*columns=*/3076));
}

}  // namespace
}  // namespace muster::kernels::cuda::fused_gelu_test
