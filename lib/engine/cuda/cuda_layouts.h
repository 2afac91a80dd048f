// The layouts of tensors in GPU memory, and which ops pad matrices. This file does not depend on
// CUDA.
//
// Tensor cores are fastest if rows begin at multiples of 16 bytes and every dimension of a product
// is a multiple of the tile size. A head of 50,257 classes satisfies neither. Its weight, and the
// tensors computed from it, are padded to a multiple of 64: from 50,257 to 50,304 rows, 0.1 % more.
//
// Padding holds zeros, so that a product may include it. The weight's padding is zeroed with its
// memory, which makes the padding of the logits zero. The loss writes its gradient with zeros,
// which makes the padding of the weight's gradient zero. (In a row of logits that is not finite,
// padding may be NaN.)
//
// No other code sees the padding. Losses count only real classes. A padded weight or bias is a
// plain one with extra elements behind it.
#pragma once

#include <cstdint>

#include "lib/engine/kernel.h"
#include "lib/graph/shape_inference.h"

namespace muster {

// Images as [B, H, W, C], weights of convolutions as [O, K, L, C/groups]. Only for tensors with
// four dimensions.
inline constexpr Layout kChannelsLast = Layout{1};
// The last dimension is padded: the starts of rows are PaddedSize(columns) elements apart.
inline constexpr Layout kPaddedColumns = Layout{2};
// The first dimension of a vector or matrix is padded: plain, with zeros behind.
inline constexpr Layout kPaddedRows = Layout{3};

// Returns the padded size of a dimension: the next multiple of 64.
int64_t PaddedSize(int64_t n);

// These implement the functions of KernelRegistry.
int64_t CudaBytes(const TensorType& type, Layout layout);
Layout CudaParameterLayout(const TensorType& type);
bool CudaReadsAs(Layout from, Layout to);
bool CudaFetches(Layout layout);

// Returns whether the node computes on padded matrices, and if so sets their layouts in `plan`.
// These ops do if their inputs are padded already: Linear without an activation, its derivatives,
// softmax cross-entropy, its derivative and CorrectCount. Otherwise `plan` does not change.
bool ChoosePadding(const TypedNode& node, PlannedNode& plan);

// Replaces padded layouts by plain ones for an op that ChoosePadding() does not know. So no planner
// mistakes padding for a layout that it may keep.
void HidePadding(TypedNode& node);

}  // namespace muster
