// Shared code of normalisations over the last dimension.
#pragma once

#include <cstdint>

#include "kernels/cpu/norm_loops.h"

namespace muster::kernels {

// Returns the loops for this processor.
const NormLoops& Norms();

// Returns the rows per parallel piece, for rows of `channels` floats.
int64_t RowGrain(int64_t channels);

// Computes dgain[C] and, unless null, dbias[C] over `rows` rows. A null mean is zero.
void RowNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                           const float* mean, const float* rstd, int64_t rows, int64_t channels);

}  // namespace muster::kernels
