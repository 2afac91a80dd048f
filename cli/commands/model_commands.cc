// Implements muster model describe.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/model_choice.h"
#include "cli/commands/session.h"
#include "google/protobuf/struct.pb.h"
#include "lib/data/input_use.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/executor.h"
#include "lib/graph/cost.h"
#include "lib/graph/dtype.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/model/model.h"
#include "lib/graph/shape_inference.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

// A node of the forward graph with its parameters and cost.
struct Layer {
  std::string name;
  std::string op;
  std::string output;  // type of its first output
  int64_t parameters = 0;
  int64_t flops = 0;  // forward
};

// An input or output of the model.
struct Port {
  std::string name;
  TensorType type;
  std::string note;  // allowed values of an input, or use of an output
};

// The bytes that a device needs to train.
struct DeviceBytes {
  int64_t values = 0;  // of parameters, all copies
  int64_t gradients = 0;
  int64_t activations = 0;

  int64_t parameters() const { return values + gradients; }
  int64_t sum() const { return parameters() + activations; }
  friend bool operator==(const DeviceBytes&, const DeviceBytes&) = default;
};

struct DividedParameter {
  std::string name;
  std::vector<int64_t> shape;
  int dim = 0;
  std::vector<int64_t> part;  // shape on rank 0, which has the largest parts
};

// The division of the model among the ranks of a tensor-parallel group.
struct Division {
  std::vector<DeviceBytes> ranks;
  std::vector<DividedParameter> divided;
  // Parameters that every rank has as a whole.
  int64_t whole_tensors = 0;
  int64_t whole_elements = 0;

  int64_t whole_bytes() const { return whole_elements * static_cast<int64_t>(sizeof(float)); }
  int64_t largest_rank_bytes() const {
    return std::ranges::max(ranks, {}, &DeviceBytes::sum).sum();
  }
};

struct Description {
  std::vector<Layer> layers;
  std::vector<Port> inputs, outputs;
  // Empty unless the model is an ONNX file.
  std::vector<InitializerDecision> initializers;
  std::vector<std::string> notes, warnings;
  ParameterCount parameters;
  TrainingCost cost;
  DeviceBytes bytes;                 // of the whole model
  std::optional<Division> division;  // if there are several ranks
  int64_t available_bytes = 0;
  std::string device;

  bool fits(int64_t needed) const { return needed <= available_bytes; }
};

std::vector<Layer> LayersOf(const v1::Graph& graph, const TensorTypes& types) {
  absl::flat_hash_map<std::string, int64_t> sizes;  // of parameters without a layer yet
  for (const v1::Parameter& parameter : graph.parameters()) {
    sizes[parameter.name()] = types.at(parameter.name()).elements();
  }
  std::vector<Layer> layers;
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() == "Constant") continue;
    Layer layer{.name = node.name(),
                .op = node.op(),
                .output = types.at(node.outputs(0)).ToString(),
                .flops = NodeCost(node, types).flops};
    for (const std::string& input : node.inputs()) {
      // A shared parameter counts only for the first layer that uses it.
      if (const auto size = sizes.find(input); size != sizes.end()) {
        layer.parameters += size->second;
        sizes.erase(size);
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::vector<Port> InputsOf(const v1::Graph& graph, const TensorTypes& types) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<Port> inputs;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const std::string& name = graph.inputs(i).name();
    inputs.push_back({name, types.at(name), ToText(uses[i])});
  }
  return inputs;
}

// Returns the outputs of the ONNX file, then the other outputs of the graph.
std::vector<Port> OutputsOf(const v1::ModelSpec& spec, const Model& model, const TensorTypes& types,
                            int64_t batch) {
  const v1::Graph& graph = model.graph;
  std::vector<Port> outputs;
  for (const OnnxOutput& output : model.outputs) {
    Port port{.name = output.name, .type = {.dtype = output.dtype}};
    for (const int64_t size : output.shape) {
      port.type.shape.push_back(size < 0 ? -size * batch : size);
    }
    const bool is_read = model.outputs.size() == 1 || output.name == spec.onnx().logits();
    port.note = is_read ? "the loss reads it" : "not used";
    outputs.push_back(std::move(port));
  }
  const std::pair<std::string, const char*> own[] = {{graph.logits(), "the loss reads it"},
                                                     {graph.loss(), "the loss"},
                                                     {graph.correct(), "right predictions"}};
  for (const auto& [name, note] : own) {
    if (name.empty() || std::ranges::count(outputs, name, &Port::name) > 0) continue;
    const bool is_alias = !model.outputs.empty() && name == graph.logits();
    if (!is_alias) outputs.push_back({name, types.at(name), note});
  }
  return outputs;
}

absl::StatusOr<DeviceBytes> BytesOf(const v1::Graph& training, const ModelChoice& choice,
                                    Device& device) {
  ASSIGN_OR_RETURN(const Executor::MemoryNeed need,
                   MemoryNeedOf(training, {.batch = choice.batch, .device = &device}));
  DeviceBytes bytes{.activations = need.arena_bytes};
  for (const v1::Parameter& parameter : training.parameters()) {
    bytes.gradients += ElementCount(parameter) * static_cast<int64_t>(sizeof(float));
  }
  bytes.values = need.parameter_bytes - bytes.gradients;
  return bytes;
}

// Lists the parameters that rank 0 has in part and those that it has as a whole.
void CompareParameters(const v1::Graph& whole, const v1::Graph& rank0, Division& division) {
  for (int p = 0; p < whole.parameters_size(); ++p) {
    const v1::Parameter &parameter = whole.parameters(p), &own = rank0.parameters(p);
    const auto differs = std::ranges::mismatch(parameter.shape(), own.shape()).in1;
    if (differs == parameter.shape().end()) {
      ++division.whole_tensors;
      division.whole_elements += ElementCount(parameter);
      continue;
    }
    division.divided.push_back({.name = parameter.name(),
                                .shape = {parameter.shape().begin(), parameter.shape().end()},
                                .dim = static_cast<int>(differs - parameter.shape().begin()),
                                .part = {own.shape().begin(), own.shape().end()}});
  }
}

absl::StatusOr<Division> Divide(const v1::Graph& graph, const ModelChoice& choice, int degree,
                                Device& device) {
  Division division;
  for (int rank = 0; rank < degree; ++rank) {
    ASSIGN_OR_RETURN(const v1::Graph training,
                     TrainingGraph(graph, {.precision = choice.PrecisionValue(),
                                           .only_loss = true,
                                           .tensor_parallel = {.degree = degree, .rank = rank}}));
    if (rank == 0) CompareParameters(graph, training, division);
    ASSIGN_OR_RETURN(division.ranks.emplace_back(), BytesOf(training, choice, device));
  }
  return division;
}

absl::StatusOr<Description> Describe(const v1::ModelSpec& spec, const ModelChoice& choice,
                                     int degree) {
  ASSIGN_OR_RETURN(const Model model, LoadModel(spec));
  ASSIGN_OR_RETURN(const auto device, CreateDevice(choice.device, choice.Threads()));
  Description description{.parameters = CountParameters(model.graph),
                          .available_bytes = device->available_bytes(),
                          .device = absl::StrCat(device->name(), " (", device->description(), ")")};
  description.initializers = model.initializers;
  description.notes = model.notes;
  description.warnings = model.warnings;
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(model.graph, choice.batch));
  description.layers = LayersOf(model.graph, types);
  description.inputs = InputsOf(model.graph, types);
  description.outputs = OutputsOf(spec, model, types, choice.batch);
  ASSIGN_OR_RETURN(description.cost, GraphCost(model.graph, choice.batch));
  ASSIGN_OR_RETURN(
      const v1::Graph training,
      TrainingGraph(model.graph, {.precision = choice.PrecisionValue(), .only_loss = true}));
  ASSIGN_OR_RETURN(description.bytes, BytesOf(training, choice, *device));
  if (degree > 1) {
    ASSIGN_OR_RETURN(description.division, Divide(model.graph, choice, degree, *device));
  }
  return description;
}

const char* RoleName(InitializerRole role) {
  return role == InitializerRole::kTrained     ? "trained"
         : role == InitializerRole::kStatistic ? "statistic"
                                               : "constant";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string PortText(const std::string& heading, const std::string& note,
                     const std::vector<Port>& ports) {
  Table table({heading, "TYPE", note});
  for (const Port& port : ports) table.Add({port.name, port.type.ToString(), port.note});
  return absl::StrCat("\n", table.ToString());
}

// Returns the role of each tensor of the file, and the notes and warnings of the importer.
std::string InitializerText(const Description& d) {
  if (d.initializers.empty()) return "";
  Table table({"TENSOR", "SHAPE", "ROLE", "WHY"});
  for (const InitializerDecision& tensor : d.initializers) {
    table.Add({tensor.name, ShapeText(tensor.shape),
               absl::StrCat(RoleName(tensor.role), tensor.doubtful ? " ?" : ""), tensor.reason});
  }
  std::string text = absl::StrCat("\n", table.ToString());
  for (const std::string& note : d.notes) absl::StrAppend(&text, "\nnote: ", note);
  for (const std::string& warning : d.warnings) absl::StrAppend(&text, "\nwarning: ", warning);
  absl::StrAppend(&text, d.notes.empty() && d.warnings.empty() ? "" : "\n");
  return text;
}

// Returns the name with "*" for every number. The parameters of equal layers have one pattern.
std::string PatternOf(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (!absl::ascii_isdigit(c)) {
      pattern += c;
    } else if (pattern.empty() || pattern.back() != '*') {
      pattern += '*';
    }
  }
  return pattern;
}

// Returns a line for each kind of divided parameters.
std::string DividedText(const std::vector<DividedParameter>& divided) {
  struct Kind {
    DividedParameter first;
    int count = 0;
  };
  std::vector<Kind> kinds;
  for (const DividedParameter& parameter : divided) {
    const auto kind = std::ranges::find_if(kinds, [&](const Kind& known) {
      return PatternOf(known.first.name) == PatternOf(parameter.name) &&
             known.first.shape == parameter.shape && known.first.dim == parameter.dim &&
             known.first.part == parameter.part;
    });
    if (kind == kinds.end()) {
      kinds.push_back({.first = parameter, .count = 1});
    } else {
      ++kind->count;
    }
  }
  Table table({"DIVIDED PARAMETER", "COUNT", "SHAPE", "DIMENSION", "LARGEST PART"});
  for (const auto& [first, count] : kinds) {
    table.Add({count == 1 ? first.name : PatternOf(first.name), absl::StrCat(count),
               ShapeText(first.shape), absl::StrCat(first.dim), ShapeText(first.part)});
  }
  return table.ToString();
}

// Returns the memory of a device without and with the division, and the divided parameters.
std::string DivisionText(const DeviceBytes& alone, const Division& division) {
  Table table({"DEVICE", "VALUES", "GRADIENTS", "ACTIVATIONS", "SUM", "RATIO"});
  const auto add = [&](const std::string& device, const DeviceBytes& bytes) {
    table.Add({device, FormatBytes(bytes.values), FormatBytes(bytes.gradients),
               FormatBytes(bytes.activations), FormatBytes(bytes.sum()),
               absl::StrFormat("%.2f", static_cast<double>(bytes.sum()) / alone.sum())});
  };
  add("alone", alone);
  const std::vector<DeviceBytes>& ranks = division.ranks;
  // Equal ranks follow each other, because the first ranks have the larger parts.
  for (auto first = ranks.begin(), end = first; first != ranks.end(); first = end) {
    end = std::find_if(first, ranks.end(), [&](const DeviceBytes& b) { return b != *first; });
    const int64_t from = first - ranks.begin(), to = end - ranks.begin() - 1;
    add(from == to ? absl::StrCat("rank ", from) : absl::StrCat("ranks ", from, " to ", to),
        *first);
  }
  const size_t tensors = division.divided.size() + division.whole_tensors;
  return absl::StrCat("\n", table.ToString(), "\n", DividedText(division.divided), "\n",
                      division.whole_tensors, " of ", tensors,
                      " parameters are whole on every rank: ",
                      FormatCount(static_cast<double>(division.whole_elements)), " values, ",
                      FormatBytes(division.whole_bytes()), "\n");
}

// Returns whether a device can hold its part of the model, and otherwise what helps.
std::string FitText(const Description& d) {
  const int64_t bytes = d.division ? d.division->largest_rank_bytes() : d.bytes.sum();
  const char* subject = d.division ? "the largest rank " : "";
  if (d.fits(bytes)) return absl::StrCat(subject, "fits");
  return absl::StrCat(subject, "does NOT fit; use ",
                      d.division ? "a larger --tensor-parallel, " : "",
                      "a smaller batch or training.micro_batch_size, "
                      "a larger resources.workers.logical, training.recompute, or bf16");
}

std::string Text(const Description& d, const ModelChoice& choice) {
  Table table({"LAYER", "OP", "OUTPUT", "PARAMETERS", "GFLOP"});
  for (const Layer& layer : d.layers) {
    table.Add({layer.name, layer.op, layer.output,
               layer.parameters == 0 ? "" : FormatCount(static_cast<double>(layer.parameters)),
               layer.flops == 0 ? "" : absl::StrFormat("%.3f", layer.flops / 1e9)});
  }
  std::string text = absl::StrCat(
      table.ToString(), InitializerText(d), PortText("INPUT", "VALUES", d.inputs),
      PortText("OUTPUT", "USE", d.outputs), d.division ? DivisionText(d.bytes, *d.division) : "");
  absl::StrAppend(&text, "\nparameters    ", FormatCount(static_cast<double>(d.parameters.trained)),
                  " trained");
  if (d.parameters.statistic > 0) {
    absl::StrAppend(&text, ", ", FormatCount(static_cast<double>(d.parameters.statistic)),
                    " statistics");
  }
  absl::StrAppendFormat(&text, "\nbatch         %d, %s: %.3f GFLOP forward, %.3f GFLOP a step\n",
                        choice.batch, choice.precision, d.cost.forward.flops / 1e9,
                        (d.cost.forward.flops + d.cost.backward.flops) / 1e9);
  absl::StrAppend(&text, "memory        ", FormatBytes(d.bytes.activations), " activations + ",
                  FormatBytes(d.bytes.parameters()),
                  " parameters and gradients = ", FormatBytes(d.bytes.sum()), "\ndevice        ",
                  d.device, ": ", FormatBytes(d.available_bytes), " available: ", FitText(d), "\n");
  return text;
}

google::protobuf::ListValue ShapeMessage(const std::vector<int64_t>& shape) {
  google::protobuf::ListValue list;
  for (const int64_t size : shape) list.add_values()->set_number_value(static_cast<double>(size));
  return list;
}

google::protobuf::ListValue Message(const std::vector<Port>& ports, const char* note) {
  google::protobuf::ListValue list;
  for (const Port& port : ports) {
    auto& own = *list.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(port.name);
    own["type"].set_string_value(std::string(DTypeName(port.type.dtype)));
    *own["shape"].mutable_list_value() = ShapeMessage(port.type.shape);
    own[note].set_string_value(port.note);
  }
  return list;
}

google::protobuf::Struct Message(const DeviceBytes& bytes) {
  google::protobuf::Struct message;
  for (const auto& [name, value] :
       {std::pair("values", bytes.values), std::pair("gradients", bytes.gradients),
        std::pair("activations", bytes.activations), std::pair("sum", bytes.sum())}) {
    (*message.mutable_fields())[name].set_number_value(static_cast<double>(value));
  }
  return message;
}

google::protobuf::Struct DivisionMessage(const Description& d) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  const Division& division = *d.division;
  fields["fits"].set_bool_value(d.fits(division.largest_rank_bytes()));
  *fields["alone_bytes"].mutable_struct_value() = Message(d.bytes);
  auto& ranks = *fields["rank_bytes"].mutable_list_value();
  for (const DeviceBytes& bytes : division.ranks) {
    *ranks.add_values()->mutable_struct_value() = Message(bytes);
  }
  auto& divided = *fields["divided"].mutable_list_value();
  for (const DividedParameter& parameter : division.divided) {
    auto& own = *divided.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(parameter.name);
    *own["shape"].mutable_list_value() = ShapeMessage(parameter.shape);
    own["dimension"].set_number_value(parameter.dim);
    *own["largest_part"].mutable_list_value() = ShapeMessage(parameter.part);
  }
  fields["whole_parameters"].set_number_value(static_cast<double>(division.whole_tensors));
  fields["whole_values"].set_number_value(static_cast<double>(division.whole_elements));
  fields["whole_bytes"].set_number_value(static_cast<double>(division.whole_bytes()));
  return message;
}

google::protobuf::Struct Message(const Description& d, const ModelChoice& choice) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  const auto number = [&](const char* name, double value) { fields[name].set_number_value(value); };
  number("parameters_trained", static_cast<double>(d.parameters.trained));
  number("parameters_statistic", static_cast<double>(d.parameters.statistic));
  number("batch", static_cast<double>(choice.batch));
  number("forward_flops", static_cast<double>(d.cost.forward.flops));
  number("step_flops", static_cast<double>(d.cost.forward.flops + d.cost.backward.flops));
  number("activation_bytes", static_cast<double>(d.bytes.activations));
  number("parameter_bytes", static_cast<double>(d.bytes.parameters()));
  number("available_bytes", static_cast<double>(d.available_bytes));
  fields["fits"].set_bool_value(d.fits(d.bytes.sum()));
  fields["precision"].set_string_value(choice.precision);
  fields["device"].set_string_value(d.device);
  *fields["inputs"].mutable_list_value() = Message(d.inputs, "values");
  *fields["outputs"].mutable_list_value() = Message(d.outputs, "use");
  auto& layers = *fields["layers"].mutable_list_value();
  for (const Layer& layer : d.layers) {
    auto& own = *layers.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(layer.name);
    own["op"].set_string_value(layer.op);
    own["output"].set_string_value(layer.output);
    own["parameters"].set_number_value(static_cast<double>(layer.parameters));
    own["forward_flops"].set_number_value(static_cast<double>(layer.flops));
  }
  if (d.division) *fields["tensor_parallel"].mutable_struct_value() = DivisionMessage(d);
  if (d.initializers.empty()) return message;
  auto& tensors = *fields["initializers"].mutable_list_value();
  for (const InitializerDecision& tensor : d.initializers) {
    auto& own = *tensors.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(tensor.name);
    own["role"].set_string_value(RoleName(tensor.role));
    own["reason"].set_string_value(tensor.reason);
    own["doubtful"].set_bool_value(tensor.doubtful);
    *own["shape"].mutable_list_value() = ShapeMessage(tensor.shape);
  }
  for (const auto& [name, lines] :
       {std::pair("notes", &d.notes), std::pair("warnings", &d.warnings)}) {
    auto& list = *fields[name].mutable_list_value();
    for (const std::string& line : *lines) list.add_values()->set_string_value(line);
  }
  return message;
}

// Prints the parameters of an external model. Muster knows nothing else of it.
absl::Status PrintParameters(const v1::ModelSpec& spec, const Session& session) {
  ASSIGN_OR_RETURN(const Model model, LoadModel(spec));
  const ParameterCount count = CountParameters(model.graph);
  Table table({"PARAMETER", "SHAPE", "ROLE"});
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["parameters_trained"].set_number_value(static_cast<double>(count.trained));
  fields["parameters_statistic"].set_number_value(static_cast<double>(count.statistic));
  auto& list = *fields["parameters"].mutable_list_value();
  for (const v1::Parameter& parameter : model.graph.parameters()) {
    const char* role = RoleName(parameter.has_statistic_momentum() ? InitializerRole::kStatistic
                                                                   : InitializerRole::kTrained);
    const std::vector<int64_t> shape(parameter.shape().begin(), parameter.shape().end());
    table.Add({parameter.name(), ShapeText(shape), role});
    auto& own = *list.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(parameter.name());
    own["role"].set_string_value(role);
    *own["shape"].mutable_list_value() = ShapeMessage(shape);
  }
  std::string text = absl::StrCat(table.ToString(), "\nparameters    ",
                                  FormatCount(static_cast<double>(count.trained)), " trained");
  if (count.statistic > 0) {
    absl::StrAppend(&text, ", ", FormatCount(static_cast<double>(count.statistic)), " statistics");
  }
  session.Print(message, absl::StrCat(text, "\n"), absl::StrCat(count.trained, "\n"));
  return absl::OkStatus();
}

absl::Status PrintDescription(const ModelChoice& choice, int degree, const Session& session) {
  ASSIGN_OR_RETURN(const v1::ModelSpec spec, choice.Spec());
  if (spec.has_external() && degree > 1) {
    return absl::InvalidArgumentError(
        "--tensor-parallel: not with model.external: the program divides its model");
  }
  if (spec.has_external()) return PrintParameters(spec, session);
  ASSIGN_OR_RETURN(const Description description, Describe(spec, choice, degree));
  session.Print(Message(description, choice), Text(description, choice),
                absl::StrCat(description.parameters.trained, "\n"));
  return absl::OkStatus();
}

}  // namespace

void AddModelCommands(Command program, Session& session) {
  Command model = program.AddCommand("model", "Inspect models",
                                     "muster model describe --zoo resnet50 --batch 32");
  model.RequireCommand();
  auto choice = std::make_shared<ModelChoice>();
  Command describe =
      model.AddCommand("describe", "Layers, inputs, FLOPs, memory: does it fit?",
                       "muster model describe --zoo resnet50 --batch 32 --precision bf16");
  choice->AddOptions(describe);
  auto degree = std::make_shared<int>(1);
  describe.AddOption("--tensor-parallel", *degree, "Devices that share the model; default: 1")
      .Within(1, limits::kTensorParallelMax);
  describe.SetAction(
      [choice, degree, &session] { session.Fail(PrintDescription(*choice, *degree, session)); });
}

}  // namespace muster::cli
