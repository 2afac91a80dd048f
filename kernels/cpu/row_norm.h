// What normalisations over the last dimension share.
#pragma once

#include <cstdint>

#include "kernels/cpu/norm_loops.h"

namespace muster::kernels {

// Of the processor's level.
const NormLoops& Norms();

// Rows of a parallel piece, for rows of `channels` floats.
int64_t RowGrain(int64_t channels);

// dgain[C] and, unless null, dbias[C] over R rows; a null mean is zero.
void RowNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                           const float* mean, const float* rstd, int64_t rows, int64_t channels);

}  // namespace muster::kernels
