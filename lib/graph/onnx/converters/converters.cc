#include "lib/graph/onnx/converters/converters.h"

namespace muster {

OnnxConverter FindOnnxConverter(absl::string_view op_type) {
  static const auto& table = *[] {
    auto* all = new ConverterTable;
    AddElementwiseConverters(*all);
    AddMatrixConverters(*all);
    AddImageConverters(*all);
    AddNormalisationConverters(*all);
    AddReductionConverters(*all);
    AddShapeConverters(*all);
    AddIndexConverters(*all);
    AddRecurrentConverters(*all);
    AddLossConverters(*all);
    return all;
  }();
  const auto found = table.find(op_type);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace muster
