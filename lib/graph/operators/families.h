// The rows of ops.md, one file per family. A new operator needs a new row here and a kernel in the
// engine. Private to lib/graph.
#pragma once

#include <vector>

#include "lib/graph/operator.h"

namespace muster {

std::vector<Operator> MatrixOperators();
std::vector<Operator> ImageOperators();
std::vector<Operator> NormalisationOperators();
std::vector<Operator> ElementwiseOperators();
std::vector<Operator> ReductionOperators();
std::vector<Operator> ShapeOperators();
std::vector<Operator> AttentionOperators();
std::vector<Operator> RecurrenceOperators();
std::vector<Operator> LossOperators();
std::vector<Operator> CollectiveOperators();
std::vector<Operator> FusedOperators();

}  // namespace muster
