// The layouts of tensors in the memory of a GPU, and which ops pad matrices. Knows no CUDA.
//
// Tensor cores are fed fastest where rows begin at multiples of 16 bytes and every dimension of a
// product is a multiple of what a tile takes. A head of 50,257 classes has neither: its weight, and
// what is computed from it, is padded to a multiple of 64 (of 50,257 rows to 50,304, by 0.1 %).
// Padding holds zeros, so that a product may run over it: w's come with its memory, from them
// follow those of the logits, the loss's gradient is written with zeros, and the weight's gradient
// gets zeros by them. (In a row of logits that is not finite padding may be NaN.) Nobody else sees
// it: losses count the classes that there are, and a padded weight or bias is a plain one with more
// behind.
#pragma once

#include <cstdint>

#include "lib/engine/kernel.h"
#include "lib/graph/shape_inference.h"

namespace muster {

// Images as [B, H, W, C], weights of convolutions as [O, K, L, C/groups]; of tensors with four
// dimensions.
inline constexpr Layout kChannelsLast = Layout{1};
// The last dimension padded: rows lie PaddedSize(columns) elements apart.
inline constexpr Layout kPaddedColumns = Layout{2};
// The first dimension padded, of vectors and matrices: plain, with zeros behind.
inline constexpr Layout kPaddedRows = Layout{3};

// `n` as padded dimensions count it: the next multiple of 64.
int64_t PaddedSize(int64_t n);

// KernelRegistry's answers.
int64_t CudaBytes(const TensorType& type, Layout layout);
Layout CudaParameterLayout(const TensorType& type);
bool CudaReadsAs(Layout from, Layout to);
bool CudaFetches(Layout layout);

// Whether the node computes on padded matrices, and then in which layouts. Linear without an
// activation, its derivatives, softmax cross-entropy, its derivative and CorrectCount do, where
// their inputs lie so already; otherwise `plan` stays as it is.
bool ChoosePadding(const TypedNode& node, PlannedNode& plan);

// To an op that ChoosePadding() does not know what is padded reads as plain, so that no planner
// takes padding for a layout that it may keep.
void HidePadding(TypedNode& node);

}  // namespace muster
