#include "lib/graph/onnx/onnx_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <ext/stdio_filebuf.h>
#include <filesystem>
#include <fstream>
#include <istream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/message.h"
#include "lib/file/regular_file.h"
#include "lib/graph/half.h"
#include "lib/graph/onnx/function_inlining.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using onnx::TensorProto;

constexpr int64_t kElementsMax = int64_t{1} << 40;
constexpr char kPartial[] = ".partial";  // suffix of a file that is being written

absl::Status Invalid(const std::string& path, absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(path, ": ", what)), "MODEL_INVALID");
}

int64_t BytesPerElement(int32_t type) {
  switch (type) {
    case TensorProto::UINT8:
    case TensorProto::INT8:
    case TensorProto::BOOL:
      return 1;
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
      return 2;
    case TensorProto::FLOAT:
    case TensorProto::INT32:
      return 4;
    case TensorProto::INT64:
    case TensorProto::DOUBLE:
      return 8;
    default:
      return 0;
  }
}

// Rounds to nearest, ties to even.
uint16_t ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {  // subnormal: in units of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;
    const float rounded = scaled + 8388608.0f - 8388608.0f;
    return sign | static_cast<uint16_t>(rounded);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

uint16_t ToBfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <typename T, typename To>
void Widen(const std::string& bytes, std::vector<To>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    to[i] = static_cast<To>(element);
  }
}

// Returns the bytes of `values` in the tensor's own type, little-endian like this machine.
std::string Encode(const std::vector<float>& values, int32_t type) {
  std::string bytes(values.size() * BytesPerElement(type), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    char* to = bytes.data() + i * BytesPerElement(type);
    const double wide = values[i];
    const uint16_t narrow = type == TensorProto::FLOAT16 ? ToHalf(values[i]) : ToBfloat(values[i]);
    if (type == TensorProto::FLOAT) std::memcpy(to, &values[i], 4);
    if (type == TensorProto::DOUBLE) std::memcpy(to, &wide, 8);
    if (type == TensorProto::FLOAT16 || type == TensorProto::BFLOAT16) std::memcpy(to, &narrow, 2);
  }
  return bytes;
}

// Returns an error if external data would need more than the machine's memory. Such files can be
// sparse: a few bytes on disk then claim any amount of memory.
absl::Status CheckExternalBytes(const std::string& path, const onnx::GraphProto& graph) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t bytes = 0;
  for (const TensorProto& tensor : graph.initializer()) {
    if (tensor.data_location() != TensorProto::EXTERNAL) continue;
    bytes += std::max<int64_t>(ElementsOf(tensor), 0) * BytesPerElement(tensor.data_type());
    if (bytes > memory) {
      return Invalid(path, absl::StrCat("has over ", bytes,
                                        " bytes of initialisers in files beside"
                                        " it, this machine has ",
                                        memory, " bytes of memory"));
    }
  }
  return absl::OkStatus();
}

void UseForInference(onnx::GraphProto& graph) {
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) UseForInference(*attribute.mutable_g());
    }
    if (node.op_type() == "BatchNormalization") {
      node.mutable_output()->DeleteSubrange(1, node.output_size() - 1);
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.name() == "training_mode") attribute.set_i(0);
      }
    }
    // The third input says whether the Dropout trains. Without that input it does not.
    if (node.op_type() == "Dropout" && node.input_size() > 2) {
      node.mutable_input()->DeleteSubrange(2, node.input_size() - 2);
    }
  }
}

// Returns whether the field is a text about the origin of the file, which nothing reads.
bool IsRemark(const google::protobuf::FieldDescriptor& field) {
  return field.name() == "doc_string" || absl::StartsWith(field.name(), "producer_");
}

// Returns the first text of `message` that is not UTF-8, with its field, or "" if there is none.
std::string FirstForeignText(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_text = field->type() == FieldDescriptor::TYPE_STRING && !IsRemark(*field);
    if (!is_text && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string found;
      if (is_text) {
        std::string text = field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                                : reflection.GetString(message, field);
        if (std::string valid = ValidUtf8(text); valid != text) {
          found = absl::StrCat(field->name(), " '", valid, "'");
        }
      } else {
        found =
            FirstForeignText(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field));
      }
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace

int64_t ElementsOf(const TensorProto& tensor) {
  int64_t elements = 1;
  for (int64_t size : tensor.dims()) {
    if (size < 0 || (size > 0 && elements > kElementsMax / size)) return -1;
    elements *= size;
  }
  return elements;
}

bool IsFloating(int32_t type) {
  return type == TensorProto::FLOAT || type == TensorProto::DOUBLE ||
         type == TensorProto::FLOAT16 || type == TensorProto::BFLOAT16;
}

absl::StatusOr<OnnxFile> OnnxFile::Open(const std::string& path, MayRead may_read) {
  const OpenedFile opened = OpenRegularFile(path);
  if (opened.error_number != 0) {
    return WithReason(absl::NotFoundError(PathFault(path, opened.error_number)), "MODEL_NOT_FOUND");
  }
  if (opened.descriptor < 0) return Invalid(path, "is no regular file");
  OnnxFile file;
  file.path_ = path;
  file.may_read_ = std::move(may_read);
  {
    google::protobuf::io::FileInputStream input(opened.descriptor);
    input.SetCloseOnDelete(true);
    google::protobuf::io::CodedInputStream coded(&input);
    if (!file.model_.ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage() ||
        file.model_.graph().node_size() == 0) {
      return Invalid(path, "is no ONNX file (it does not parse, or has no nodes)");
    }
  }
  // Neither a member nor the store could read a job with such a text.
  if (const std::string text = FirstForeignText(file.model_); !text.empty()) {
    return Invalid(path, absl::StrCat("has the ", text,
                                      ", which is not UTF-8: export it again with other names"));
  }
  for (const onnx::OperatorSetIdProto& set : file.model_.opset_import()) {
    if (set.domain().empty() || set.domain() == "ai.onnx") file.opset_ = set.version();
  }
  if (file.opset_ < kOpsetMin || file.opset_ > kOpsetMax) {
    return Invalid(path, absl::StrCat("is of opset ", file.opset_, "; ", kOpsetMin, " to ",
                                      kOpsetMax, " can be read: export it again with one of them"));
  }
  if (absl::Status inlined = InlineFunctions(file.model_); !inlined.ok()) {
    return Invalid(path, inlined.message());
  }
  RETURN_IF_ERROR(CheckExternalBytes(path, file.graph()));
  return file;
}

absl::StatusOr<std::string> OnnxFile::Bytes(const TensorProto& tensor) const {
  const auto fail = [&](absl::string_view what) {
    return Invalid(path_, absl::StrCat("tensor '", tensor.name(), "' ", what));
  };
  const int64_t elements = ElementsOf(tensor);
  if (elements < 0) return fail("has an impossible shape");
  const int64_t wanted = elements * BytesPerElement(tensor.data_type());
  if (tensor.data_location() != TensorProto::EXTERNAL) {
    if (static_cast<int64_t>(tensor.raw_data().size()) != wanted) {
      return fail(
          absl::StrCat("has ", tensor.raw_data().size(), " bytes, its shape needs ", wanted));
    }
    return tensor.raw_data();
  }

  std::string location;
  int64_t offset = 0, length = wanted;
  for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
    if (entry.key() == "location") location = entry.value();
    bool good = true;
    if (entry.key() == "offset") good = absl::SimpleAtoi(entry.value(), &offset);
    if (entry.key() == "length") good = absl::SimpleAtoi(entry.value(), &length);
    if (!good || offset < 0) return fail(absl::StrCat("has external data at ", entry.value()));
  }
  const fs::path relative = fs::path(location).lexically_normal();
  if (location.empty() || relative.is_absolute() || *relative.begin() == "..") {
    return fail(absl::StrCat("has its data in '", location, "', which is not beside the file"));
  }
  if (length != wanted) {
    return fail(absl::StrCat("has ", length, " external bytes, its shape needs ", wanted));
  }
  const fs::path data = fs::path(path_).parent_path() / relative;
  if (may_read_ != nullptr) {
    // The name says that the data lies beside the ONNX file, but it may be a link to another place.
    if (const absl::Status may = may_read_(data.string()); !may.ok()) {
      return fail(absl::StrCat("has external data that may not be read: ", may.message()));
    }
  }
  const OpenedFile opened = OpenRegularFile(data.string());
  if (opened.descriptor < 0) {
    return fail(absl::StrCat("has its data in ", data.string(), ", which is ",
                             opened.error_number != 0 ? "missing" : "no regular file"));
  }
  __gnu_cxx::stdio_filebuf<char> buffer(opened.descriptor, std::ios::in | std::ios::binary);
  std::istream stream(&buffer);
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(data, error));
  if (error || offset > size || length > size - offset) {
    return fail(absl::StrCat("ends at byte ", offset + length, " of ", data.string(),
                             ", which has ", size));
  }
  std::string bytes(length, '\0');
  if (!stream.seekg(offset) || !stream.read(bytes.data(), length)) {
    return fail(absl::StrCat("cannot be read from ", data.string()));
  }
  return bytes;
}

absl::StatusOr<std::vector<float>> OnnxFile::Floats(const TensorProto& tensor) const {
  if (!IsFloating(tensor.data_type())) {
    return Invalid(path_, absl::StrCat("tensor '", tensor.name(), "' of data type ",
                                       tensor.data_type(), " is not floating"));
  }
  if (tensor.float_data_size() > 0 && tensor.float_data_size() == ElementsOf(tensor)) {
    return std::vector<float>(tensor.float_data().begin(), tensor.float_data().end());
  }
  if (tensor.double_data_size() > 0 && tensor.double_data_size() == ElementsOf(tensor)) {
    return std::vector<float>(tensor.double_data().begin(), tensor.double_data().end());
  }
  std::vector<uint16_t> narrow;
  const bool is_narrow =
      tensor.data_type() == TensorProto::FLOAT16 || tensor.data_type() == TensorProto::BFLOAT16;
  if (is_narrow && tensor.int32_data_size() > 0 && tensor.int32_data_size() == ElementsOf(tensor)) {
    narrow.assign(tensor.int32_data().begin(), tensor.int32_data().end());
  }
  std::string bytes;
  if (narrow.empty()) {
    ASSIGN_OR_RETURN(bytes, Bytes(tensor));
  }
  std::vector<float> values(ElementsOf(tensor));
  if (tensor.data_type() == TensorProto::FLOAT) {
    Widen<float>(bytes, values);
  } else if (tensor.data_type() == TensorProto::DOUBLE) {
    Widen<double>(bytes, values);
  } else {
    if (narrow.empty()) {
      narrow.resize(values.size());
      Widen<uint16_t>(bytes, narrow);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          tensor.data_type() == TensorProto::FLOAT16 ? FromHalf(narrow[i]) : FromBf16(narrow[i]);
    }
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> OnnxFile::Integers(const TensorProto& tensor) const {
  if (IsFloating(tensor.data_type()) || BytesPerElement(tensor.data_type()) == 0) {
    return Invalid(path_, absl::StrCat("tensor '", tensor.name(), "' of data type ",
                                       tensor.data_type(), " has no integers"));
  }
  if (tensor.int64_data_size() > 0 && tensor.int64_data_size() == ElementsOf(tensor)) {
    return std::vector<int64_t>(tensor.int64_data().begin(), tensor.int64_data().end());
  }
  if (tensor.int32_data_size() > 0 && tensor.int32_data_size() == ElementsOf(tensor)) {
    return std::vector<int64_t>(tensor.int32_data().begin(), tensor.int32_data().end());
  }
  ASSIGN_OR_RETURN(const std::string bytes, Bytes(tensor));
  std::vector<int64_t> values(ElementsOf(tensor));
  switch (tensor.data_type()) {
    case TensorProto::INT64:
      Widen<int64_t>(bytes, values);
      break;
    case TensorProto::INT32:
      Widen<int32_t>(bytes, values);
      break;
    case TensorProto::INT8:
      Widen<int8_t>(bytes, values);
      break;
    default:
      Widen<uint8_t>(bytes, values);
  }
  return values;
}

absl::Status OnnxFile::Save(
    const std::string& path,
    const absl::flat_hash_map<std::string, std::vector<float>>& values) const {
  onnx::ModelProto model = model_;
  UseForInference(*model.mutable_graph());
  const std::string data_name = fs::path(path).filename().string() + ".data";
  const std::string data_path = (fs::path(path).parent_path() / data_name).string();
  std::ofstream data;
  int64_t offset = 0;
  for (TensorProto& tensor : *model.mutable_graph()->mutable_initializer()) {
    const bool external = tensor.data_location() == TensorProto::EXTERNAL;
    const auto replaced = values.find(tensor.name());
    if (replaced == values.end() && !external) continue;
    std::string bytes;
    if (replaced == values.end()) {
      ASSIGN_OR_RETURN(bytes, Bytes(tensor));
    } else {
      bytes = Encode(replaced->second, tensor.data_type());
    }
    if (!external) {
      tensor.clear_float_data();
      tensor.clear_double_data();
      tensor.clear_int32_data();
      tensor.set_raw_data(std::move(bytes));
      continue;
    }
    if (!data.is_open()) data.open(absl::StrCat(data_path, kPartial), std::ios::binary);
    tensor.clear_external_data();
    for (const auto& [key, value] :
         {std::pair<std::string, std::string>("location", data_name),
          std::pair<std::string, std::string>("offset", absl::StrCat(offset)),
          std::pair<std::string, std::string>("length", absl::StrCat(bytes.size()))}) {
      onnx::StringStringEntryProto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    data.write(bytes.data(), bytes.size());
    offset += bytes.size();
  }
  const bool has_data = data.is_open();
  if (has_data && !data.flush()) {
    return absl::UnavailableError(absl::StrCat(data_path, ": cannot be written"));
  }
  std::ofstream stream(absl::StrCat(path, kPartial), std::ios::binary);
  if (!stream || !model.SerializeToOstream(&stream) || !stream.flush()) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  }
  // Renames come last: a file that is saved over itself was read until here.
  std::error_code error;
  if (has_data) fs::rename(absl::StrCat(data_path, kPartial), data_path, error);
  if (!error) fs::rename(absl::StrCat(path, kPartial), path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace muster
