// LSTM and GRU. One product with x covers all time steps; the products with h follow step by step.
#include "kernels/cuda/recurrent.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/cuda/batch_norm.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using MatMul = std::shared_ptr<cuda::MatMul>;

enum class Cell { kLstm, kGru };

// The sizes of a recurrence: x[B, T, I], G gates of H units, D directions.
struct Sizes {
  int64_t batch, time, inputs, hidden, gates, directions;
  bool reverse;
  cuda::Type type;

  int64_t row() const { return gates * hidden; }    // gates of one sample at one time step
  int64_t units() const { return batch * hidden; }  // elements of h
  int64_t steps() const { return batch * time; }
  int64_t bytes(int64_t n) const { return n * cuda::Bytes(type); }
  // The alignment of the starts of directions, time steps and samples, in bytes.
  int64_t alignment() const {
    return std::gcd(bytes(hidden), std::gcd(bytes(inputs), int64_t{16}));
  }
  // The floats of one direction's state.
  int64_t state_floats() const { return cuda::RecurrentStateFloats(batch, time, hidden); }
  // The order in which a direction visits time steps.
  bool goes_back(int64_t direction) const { return reverse || direction == 1; }
  int64_t first(int64_t direction) const { return goes_back(direction) ? time - 1 : 0; }
  int64_t stride(int64_t direction) const { return goes_back(direction) ? -1 : 1; }

  cuda::RecurrentStep Step(int64_t direction, int64_t i) const {
    const int64_t step = first(direction) + i * stride(direction);
    return {.batch = batch,
            .time = time,
            .hidden = hidden,
            .y_row = directions * hidden,
            .column = direction * hidden,
            .step = step,
            .before = i == 0 ? -1 : step - stride(direction),
            .type = type};
  }
};

Sizes SizesOf(const CudaNode& node, int x, int r, Cell cell) {
  const std::vector<int64_t>& of_x = node.shape(x);
  const std::vector<int64_t>& of_r = node.shape(r);
  return {.batch = of_x[0],
          .time = of_x[1],
          .inputs = of_x[2],
          .hidden = of_r[2],
          .gates = cell == Cell::kLstm ? 4 : 3,
          .directions = of_r[0],
          .reverse = IntegerAttribute(*node.node, "reverse") != 0,
          .type = node.type(x)};
}

int64_t FloatBytes(int64_t floats) { return floats * int64_t{sizeof(float)}; }

std::byte* At(std::byte* memory, int64_t bytes) {
  return memory == nullptr ? nullptr : memory + bytes;
}

// Prepares several products for one node. They share the node's workspace.
struct Products {
  CudaContext& context;
  absl::Status status = absl::OkStatus();
  int64_t workspace_bytes = 0;

  MatMul Add(cuda::MatMulShape shape, const Sizes& sizes) {
    shape.alignment = sizes.alignment();
    auto product = context.Prepare(shape);
    if (!product.ok()) {
      status.Update(product.status());
      return nullptr;
    }
    workspace_bytes = std::max(workspace_bytes, (*product)->workspace_bytes());
    return *product;
  }
};

// --- Forward ------------------------------------------------------------------------------------

struct Forward {
  Cell cell;
  Sizes s;
  MatMul of_inputs;      // f32[B T, G H] = x wᵀ
  MatMul of_h0;          // f32[B, G H] = h0 rᵀ
  MatMul of_hidden;      // f32[B, G H] = h rᵀ, with h in rows of y
  int64_t library;       // workspace of the products, followed by:
  int64_t inputs_bytes;  // the result of of_inputs, then that of of_hidden
  cudaStream_t stream;

  // Outputs: y, h, c (LSTM), state. Inputs: x, w, r, bias, h0?, c0? (LSTM).
  absl::Status Run(const NodeMemory& m) const {
    for (int64_t direction = 0; direction < s.directions; ++direction) {
      RETURN_IF_ERROR(RunDirection(m, direction));
    }
    return absl::OkStatus();
  }

  absl::Status RunDirection(const NodeMemory& m, int64_t d) const {
    const bool is_lstm = cell == Cell::kLstm;
    std::byte* workspace = Align(m.workspace);
    float* inputs = Floats(workspace + library);
    float* hidden = Floats(workspace + library + inputs_bytes);
    std::byte* w = m.inputs[1] + s.bytes(d * s.row() * s.inputs);
    std::byte* r = m.inputs[2] + s.bytes(d * s.row() * s.hidden);
    std::byte* bias = m.inputs[3] + s.bytes(d * 2 * s.row());
    std::byte* h0 = At(OptionalInput(m, 4), s.bytes(d * s.units()));
    std::byte* c0 = is_lstm ? At(OptionalInput(m, 5), s.bytes(d * s.units())) : nullptr;
    std::byte* h = m.outputs[1] + s.bytes(d * s.units());
    std::byte* c = is_lstm ? m.outputs[2] + s.bytes(d * s.units()) : nullptr;
    float* state = Floats(m.outputs[is_lstm ? 3 : 2]) + d * s.state_floats();
    RETURN_IF_ERROR(
        StatusOf(of_inputs->Run({.c = inputs, .a = m.inputs[0], .b = w}, workspace, stream)));
    for (int64_t i = 0; i < s.time; ++i) {
      const cuda::RecurrentStep step = s.Step(d, i);
      float* of_step = nullptr;
      if (i > 0 || h0 != nullptr) {
        of_step = hidden;
        std::byte* before =
            i == 0 ? h0 : m.outputs[0] + s.bytes(step.before * step.y_row + step.column);
        const MatMul& product = i == 0 ? of_h0 : of_hidden;
        RETURN_IF_ERROR(
            StatusOf(product->Run({.c = hidden, .a = before, .b = r}, workspace, stream)));
      }
      const bool is_last = i + 1 == s.time;
      RETURN_IF_ERROR(StatusOf(is_lstm ? cuda::LstmStep(m.outputs[0], is_last ? h : nullptr,
                                                        is_last ? c : nullptr, state, inputs,
                                                        of_step, bias, c0, step, stream)
                                       : cuda::GruStep(m.outputs[0], is_last ? h : nullptr, state,
                                                       inputs, of_step, bias, h0, step, stream)));
    }
    return absl::OkStatus();
  }
};

template <Cell kCell>
absl::StatusOr<PlannedNode> PlanForward(const CudaNode& node) {
  const Sizes s = SizesOf(node, 0, 2, kCell);
  Products products{node.context};
  Forward forward{.cell = kCell, .s = s, .stream = node.context.stream};
  forward.of_inputs = products.Add({.rows = s.steps(),
                                    .columns = s.row(),
                                    .inner = s.inputs,
                                    .transpose_b = true,
                                    .operands = s.type,
                                    .product = cuda::Type::kF32},
                                   s);
  cuda::MatMulShape of_hidden = {.rows = s.batch,
                                 .columns = s.row(),
                                 .inner = s.hidden,
                                 .transpose_b = true,
                                 .operands = s.type,
                                 .product = cuda::Type::kF32};
  forward.of_h0 = products.Add(of_hidden, s);
  // Unlike h0, the h of a step is not contiguous: its rows are rows of y.
  of_hidden.a_row = s.time * s.directions * s.hidden;
  forward.of_hidden = products.Add(of_hidden, s);
  RETURN_IF_ERROR(products.status);
  forward.library = Aligned(products.workspace_bytes);
  forward.inputs_bytes = Aligned(FloatBytes(s.steps() * s.row()));
  return PlannedNode{.workspace_bytes = forward.library + forward.inputs_bytes +
                                        FloatBytes(s.batch * s.row()) + kWorkspaceAlignment,
                     .state_bytes = {FloatBytes(s.directions * s.state_floats())},
                     .prepare = [forward](const NodeMemory& m) -> NodeRun {
                       return [forward, m](const RunNumbers&) { return forward.Run(m); };
                     }};
}

// --- Backward -----------------------------------------------------------------------------------

// The node's tensors by name.
struct GradTensors {
  std::byte *dy, *dh, *dc, *x, *w, *r, *y, *state, *h0, *c0;
  std::byte *dx, *dw, *dr, *dbias, *dh0, *dc0;

  static GradTensors Of(const NodeMemory& m, Cell cell) {
    if (cell == Cell::kLstm) {
      return {
          m.inputs[0],         m.inputs[1],          m.inputs[2],          m.inputs[3],
          m.inputs[4],         m.inputs[5],          m.inputs[7],          m.inputs[8],
          OptionalInput(m, 9), OptionalInput(m, 10), m.outputs[0],         m.outputs[1],
          m.outputs[2],        m.outputs[3],         OptionalOutput(m, 4), OptionalOutput(m, 5)};
    }
    return {m.inputs[0],  m.inputs[1],  nullptr,      m.inputs[2],         m.inputs[3],
            m.inputs[4],  m.inputs[6],  m.inputs[7],  OptionalInput(m, 8), nullptr,
            m.outputs[0], m.outputs[1], m.outputs[2], m.outputs[3],        OptionalOutput(m, 4),
            nullptr};
  }
};

struct RecurrentBackward {
  Cell cell;
  Sizes s;
  MatMul to_hidden;           // f32[B, H] = rows of the gates' gradients times r
  MatMul to_input;            // dx = the gates' gradients times w
  MatMul to_input_added;      // adds to dx, for the second direction
  MatMul to_w;                // dw = gates' gradientsᵀ x
  MatMul to_r;                // dr = gates' gradientsᵀ (h of the step before)
  cuda::BatchNormShape sums;  // sums the gates' gradients by column: dbias
  // The workspace has these parts: the products' own, the gradients of the gates (GRU: twice), h of
  // the previous steps, the gradient that flows through r, the gradient that flows past it, the
  // sums' own.
  int64_t library, gates, before, carried;
  cudaStream_t stream;

  int64_t gate_copies() const { return cell == Cell::kGru ? 2 : 1; }
  int64_t workspace_bytes() const {
    return library + gate_copies() * gates + before + 2 * carried +
           cuda::BatchNormWorkspaceBytes(sums) + kWorkspaceAlignment;
  }

  absl::Status Run(const NodeMemory& m) const {
    const GradTensors t = GradTensors::Of(m, cell);
    for (int64_t direction = 0; direction < s.directions; ++direction) {
      RETURN_IF_ERROR(RunDirection(t, Align(m.workspace), direction));
    }
    return absl::OkStatus();
  }

  absl::Status RunDirection(const GradTensors& t, std::byte* workspace, int64_t d) const {
    const bool is_lstm = cell == Cell::kLstm;
    std::byte* dgates = workspace + library;  // gradients of the gates' inputs from x
    // Gradients of the gates' inputs from h.
    std::byte* dhidden = is_lstm ? dgates : dgates + gates;
    std::byte* h_before = dgates + gate_copies() * gates;
    float* from_r = Floats(h_before + before);
    float* past_r = Floats(h_before + before + carried);
    std::byte* sum_workspace = h_before + before + 2 * carried;
    const int64_t unit_bytes = s.bytes(d * s.units());
    std::byte* r = t.r + s.bytes(d * s.row() * s.hidden);
    std::byte* h0 = At(t.h0, unit_bytes);
    std::byte* c0 = At(t.c0, unit_bytes);
    std::byte* dh = At(t.dh, unit_bytes);
    std::byte* dc = At(t.dc, unit_bytes);
    const float* state = Floats(t.state) + d * s.state_floats();

    RETURN_IF_ERROR(
        StatusOf(cudaMemsetAsync(past_r, 0, static_cast<size_t>(FloatBytes(s.units())), stream)));
    for (int64_t i = s.time - 1; i >= 0; --i) {
      const cuda::RecurrentStep step = s.Step(d, i);
      const bool is_last = i + 1 == s.time;
      const float* sent = is_last ? nullptr : from_r;
      RETURN_IF_ERROR(
          StatusOf(is_lstm ? cuda::LstmStepGrad(dgates, past_r, sent, t.dy, is_last ? dh : nullptr,
                                                is_last ? dc : nullptr, state, c0, step, stream)
                           : cuda::GruStepGrad(dgates, dhidden, past_r, sent, t.dy,
                                               is_last ? dh : nullptr, state, h0, step, stream)));
      std::byte* of_step = dhidden + s.bytes(step.step * s.row());
      RETURN_IF_ERROR(
          StatusOf(to_hidden->Run({.c = from_r, .a = of_step, .b = r}, workspace, stream)));
    }
    if (t.dh0 != nullptr) {
      RETURN_IF_ERROR(StatusOf(cuda::AddCarried(
          t.dh0 + unit_bytes, from_r, is_lstm ? nullptr : past_r, s.type, s.units(), stream)));
    }
    if (t.dc0 != nullptr) {
      RETURN_IF_ERROR(StatusOf(
          cuda::AddCarried(t.dc0 + unit_bytes, past_r, nullptr, s.type, s.units(), stream)));
    }

    // All steps have stored the gradients of their gates. So one product over all steps makes each
    // of dx, dw and dr, and one sum each half of dbias.
    const int64_t w_bytes = s.bytes(d * s.row() * s.inputs);
    RETURN_IF_ERROR(StatusOf(
        cuda::ShiftHidden(h_before, t.y, h0, s.Step(d, 0), s.first(d), s.stride(d), stream)));
    const MatMul& add_input = d == 0 ? to_input : to_input_added;
    RETURN_IF_ERROR(
        StatusOf(add_input->Run({.c = t.dx, .a = dgates, .b = t.w + w_bytes}, workspace, stream)));
    RETURN_IF_ERROR(
        StatusOf(to_w->Run({.c = t.dw + w_bytes, .a = dgates, .b = t.x}, workspace, stream)));
    RETURN_IF_ERROR(StatusOf(
        to_r->Run({.c = t.dr + s.bytes(d * s.row() * s.hidden), .a = dhidden, .b = h_before},
                  workspace, stream)));
    std::byte* dbias = t.dbias + s.bytes(d * 2 * s.row());
    RETURN_IF_ERROR(StatusOf(cuda::SumChannelBias(dbias, dgates, sums, sum_workspace, stream)));
    return StatusOf(
        cuda::SumChannelBias(dbias + s.bytes(s.row()), dhidden, sums, sum_workspace, stream));
  }
};

template <Cell kCell>
absl::StatusOr<PlannedNode> PlanBackward(const CudaNode& node) {
  const Sizes s = kCell == Cell::kLstm ? SizesOf(node, 3, 5, kCell) : SizesOf(node, 2, 4, kCell);
  Products products{node.context};
  RecurrentBackward backward{.cell = kCell, .s = s, .stream = node.context.stream};
  backward.to_hidden = products.Add({.rows = s.batch,
                                     .columns = s.hidden,
                                     .inner = s.row(),
                                     .a_row = s.time * s.row(),
                                     .operands = s.type,
                                     .product = cuda::Type::kF32},
                                    s);
  cuda::MatMulShape to_input = {.rows = s.steps(),
                                .columns = s.inputs,
                                .inner = s.row(),
                                .operands = s.type,
                                .product = s.type};
  backward.to_input = products.Add(to_input, s);
  to_input.adds = true;
  backward.to_input_added = products.Add(to_input, s);
  cuda::MatMulShape to_weight = {.rows = s.row(),
                                 .columns = s.inputs,
                                 .inner = s.steps(),
                                 .transpose_a = true,
                                 .operands = s.type,
                                 .product = s.type};
  backward.to_w = products.Add(to_weight, s);
  to_weight.columns = s.hidden;
  backward.to_r = products.Add(to_weight, s);
  RETURN_IF_ERROR(products.status);
  backward.sums = {.batch = s.steps(),
                   .channels = s.row(),
                   .pixels = 1,
                   .order = cuda::ChannelOrder::kLast,
                   .type = s.type};
  backward.library = Aligned(products.workspace_bytes);
  backward.gates = Aligned(s.bytes(s.steps() * s.row()));
  backward.before = Aligned(s.bytes(s.steps() * s.hidden));
  backward.carried = Aligned(FloatBytes(s.units()));
  return PlannedNode{.workspace_bytes = backward.workspace_bytes(),
                     .prepare = [backward](const NodeMemory& m) -> NodeRun {
                       return [backward, m](const RunNumbers&) { return backward.Run(m); };
                     }};
}

}  // namespace

void AddRecurrentKernels(CudaKernelTable& table) {
  table["Lstm"] = PlanForward<Cell::kLstm>;
  table["Gru"] = PlanForward<Cell::kGru>;
  table["LstmGrad"] = PlanBackward<Cell::kLstm>;
  table["GruGrad"] = PlanBackward<Cell::kGru>;
}

}  // namespace muster
