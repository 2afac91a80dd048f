#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"Conv2d", {{1, 1, 1, 1}, {1, 1, 1, 1}, {1}}},
      {"Conv2d", {{2, 3, 5, 7}, {4, 3, 3, 3}, {4}}},
      {"Conv2d", {{2, 3, 5, 7}, {4, 3, 3, 3}}, {{"padding", {1, 1, 1, 1}}}},
      {"Conv2d", {{2, 3, 6, 7}, {5, 3, 1, 1}, {5}}},
      {"Conv2d", {{2, 3, 6, 7}, {5, 3, 1, 1}}, {{"strides", {2, 2}}}},
      {"Conv2d", {{1, 2, 7, 5}, {3, 2, 3, 2}, {3}}, {{"strides", {2, 1}}}},
      {"Conv2d", {{2, 2, 4, 5}, {3, 2, 3, 3}, {3}}, {{"padding", {2, 0, 1, 3}}}},
      {"Conv2d", {{2, 2, 9, 8}, {3, 2, 3, 2}, {3}}, {{"dilations", {2, 3}}}},
      {"Conv2d", {{2, 4, 5, 4}, {6, 2, 3, 3}, {6}}, {{"groups", 2}, {"padding", {1, 1, 1, 1}}}},
      {"Conv2d", {{2, 5, 5, 4}, {5, 1, 3, 3}}, {{"groups", 5}, {"padding", {1, 1, 1, 1}}}},
      {"Conv2d",
       {{2, 4, 9, 8}, {6, 2, 3, 2}, {6}},
       {{"strides", {2, 3}}, {"padding", {1, 0, 2, 1}}, {"dilations", {2, 2}}, {"groups", 2}}},
      {"Conv2d", {{1, 17, 3, 2}, {18, 17, 2, 2}, {18}}},
      {"Conv2d", {{2, 3, 4, 5}, {2, 3, 4, 5}}},
      {"Conv2d", {{2, 20, 11, 9}, {33, 20, 3, 3}, {33}}, {{"padding", {1, 1, 1, 1}}}},
      {"Conv2d", {{2, 32, 9, 8}, {32, 32, 1, 1}}, {{"strides", {2, 2}}}},
      {"Conv2d", {{1, 3, 31, 33}, {16, 3, 7, 7}}, {{"strides", {2, 2}}, {"padding", {3, 3, 3, 3}}}},
      {"Conv2d", {{2, 48, 9, 7}, {48, 1, 3, 3}, {48}}, {{"groups", 48}, {"padding", {1, 1, 1, 1}}}},

      {"Conv2d", {{2, 3, 5, 7}, Constant({4, 3, 3, 3}), {4}}, {{"strides", {2, 1}}}},

      {"ConvTranspose2d", {{1, 1, 1, 1}, {1, 1, 1, 1}, {1}}},
      {"ConvTranspose2d", {{2, 3, 4, 5}, Constant({3, 2, 4, 4})}, {{"strides", {2, 2}}}},
      {"ConvTranspose2d", {{2, 3, 4, 5}, {3, 4, 3, 2}, {4}}},
      {"ConvTranspose2d", {{2, 3, 4, 5}, {3, 4, 2, 2}}, {{"strides", {2, 2}}}},
      {"ConvTranspose2d",
       {{2, 3, 4, 5}, {3, 4, 3, 3}, {4}},
       {{"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}, {"output_padding", {1, 1}}}},
      {"ConvTranspose2d",
       {{2, 3, 4, 3}, {3, 2, 3, 4}, {2}},
       {{"strides", {3, 2}}, {"padding", {2, 0, 1, 3}}, {"output_padding", {2, 0}}}},
      {"ConvTranspose2d",
       {{2, 4, 4, 3}, {4, 3, 3, 2}, {6}},
       {{"strides", {2, 3}}, {"dilations", {2, 3}}, {"groups", 2}, {"padding", {1, 0, 2, 1}}}},
      {"ConvTranspose2d", {{2, 5, 5, 4}, {5, 1, 3, 3}}, {{"groups", 5}, {"padding", {1, 1, 1, 1}}}},
      {"ConvTranspose2d",
       {{2, 33, 5, 4}, {33, 20, 4, 4}, {20}},
       {{"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}}},
      {"ConvTranspose2d",
       {{1, 32, 6, 5}, {32, 16, 3, 3}, {16}},
       {{"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}, {"output_padding", {1, 0}}}},

      {"MaxPool2d", {{1, 1, 1, 1}}, {{"kernel", {1, 1}}}},
      {"MaxPool2d", {{2, 3, 6, 7}}, {{"kernel", {2, 2}}}},
      {"MaxPool2d", {{2, 3, 6, 7}}, {{"kernel", {3, 3}}, {"strides", {2, 2}}}},
      {"MaxPool2d",
       {{2, 3, 7, 5}},
       {{"kernel", {3, 2}}, {"strides", {1, 2}}, {"padding", {1, 0, 2, 1}}}},
      {"MaxPool2d",
       {{2, 3, 6, 5}},
       {{"kernel", {3, 3}}, {"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}, {"ceil", 1}}},
      {"MaxPool2d",
       {{2, 17, 9, 8}},
       {{"kernel", {3, 2}}, {"strides", {1, 2}}, {"padding", {2, 1, 1, 2}}, {"dilations", {2, 3}}}},
      {"MaxPool2d", {{1, 17, 5, 4}}, {{"kernel", {2, 2}}, {"strides", {3, 3}}, {"ceil", 1}}},
      {"MaxPool2d",
       {{2, 35, 17, 19}},
       {{"kernel", {3, 3}}, {"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}}},

      {"AveragePool2d", {{2, 3, 6, 7}}, {{"kernel", {2, 3}}}},
      {"AveragePool2d",
       {{2, 35, 17, 19}},
       {{"kernel", {3, 3}}, {"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}}},
      {"AveragePool2d", {{2, 3, 6, 7}}, {{"kernel", {3, 3}}, {"strides", {1, 2}}}},
      {"AveragePool2d",
       {{2, 3, 7, 5}},
       {{"kernel", {3, 2}}, {"strides", {1, 2}}, {"padding", {1, 0, 2, 1}}}},
      {"AveragePool2d",
       {{2, 3, 7, 5}},
       {{"kernel", {3, 2}}, {"strides", {1, 2}}, {"padding", {1, 0, 2, 1}}, {"count_padding", 1}}},
      {"AveragePool2d",
       {{2, 3, 6, 5}},
       {{"kernel", {3, 2}}, {"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}, {"ceil", 1}}},
      {"AveragePool2d",
       {{2, 3, 6, 5}},
       {{"kernel", {3, 2}},
        {"strides", {2, 2}},
        {"padding", {1, 1, 1, 1}},
        {"ceil", 1},
        {"count_padding", 1}}},

      {"GlobalAveragePool2d", {{1, 1, 1, 1}}},
      {"GlobalAveragePool2d", {{2, 3, 5, 7}}},
      {"GlobalAveragePool2d", {{3, 17, 1, 2}}},
      {"GlobalAveragePool2d", {{2, 67, 9, 11}}},
  };
}

const OperatorFamily kFamily("images", Cases);

}  // namespace
}  // namespace muster::verification
