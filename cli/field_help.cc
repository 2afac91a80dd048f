#include "cli/field_help.h"

#include <glog/logging.h>

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/text/output.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "lib/job/spec_names.h"
#include "lib/suggestion/suggestion.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptorProto;

constexpr size_t kWidth = 80;

// A FileDescriptorSet of job.proto with its comments, as protoc wrote it. The descriptor that is
// compiled into programs has no comments.
constexpr unsigned char kJobProto[] = {
#include "cli/job_proto.inc"
};

// The comments of messages, enums, fields and values by full name. The comment before a name and
// the one after it are joined.
class Comments {
 public:
  static const Comments& OfJobProto() {
    static const auto* const kComments = new Comments();
    return *kComments;
  }
  std::string Of(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? "" : found->second;
  }

 private:
  Comments() {
    google::protobuf::FileDescriptorSet files;
    CHECK(files.ParseFromArray(kJobProto, sizeof(kJobProto)) && files.file_size() == 1);
    const FileDescriptorProto& file = files.file(0);
    for (const auto& place : file.source_code_info().location()) {
      const std::string name = NameAt(file, place.path());
      if (name.empty()) continue;
      std::vector<std::string> parts;
      for (const std::string* comment : {&place.leading_comments(), &place.trailing_comments()}) {
        // A comment with a line of dashes is a heading of the file and belongs to no name.
        if (!comment->empty() && !absl::StrContains(*comment, "-----")) {
          parts.push_back(absl::StrJoin(
              absl::StrSplit(*comment, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " "));
        }
      }
      if (!parts.empty()) by_name_[name] = absl::StrJoin(parts, " ");
    }
  }

  // Returns a name such as "muster.v1.JobSpec.name", or "" if `path` is not a message, field, enum
  // or value.
  static std::string NameAt(const FileDescriptorProto& file,
                            const google::protobuf::RepeatedField<int>& path) {
    if (path.size() != 2 && path.size() != 4) return "";
    std::string name = absl::StrCat(file.package(), ".");
    if (path[0] == FileDescriptorProto::kMessageTypeFieldNumber) {
      const DescriptorProto& message = file.message_type(path[1]);
      absl::StrAppend(&name, message.name());
      if (path.size() == 2) return name;
      if (path[2] != DescriptorProto::kFieldFieldNumber) return "";
      return absl::StrCat(name, ".", message.field(path[3]).name());
    }
    if (path[0] == FileDescriptorProto::kEnumTypeFieldNumber) {
      const auto& type = file.enum_type(path[1]);
      absl::StrAppend(&name, type.name());
      return path.size() == 2 ? name : absl::StrCat(name, ".", type.value(path[3]).name());
    }
    return "";
  }

  std::map<std::string, std::string> by_name_;
};

bool IsStruct(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Struct";
}

// Returns the message whose fields may follow in a path, or null if the path ends here.
const Descriptor* Inner(const FieldDescriptor& field) {
  const Descriptor* const message = field.message_type();
  if (message == nullptr || field.is_map() ||
      absl::StartsWith(message->full_name(), "google.protobuf.")) {
    return nullptr;
  }
  return message;
}

std::string TypeName(const FieldDescriptor& field) {
  if (field.is_map()) return "map of texts";
  std::string name;
  if (field.message_type() != nullptr) {
    const std::string& type = field.message_type()->full_name();
    name = type == "google.protobuf.Duration" ? "time" : IsStruct(field) ? "map" : "object";
  } else {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        name = "text";
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        name = "true or false";
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        name = "number";
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        name = "one of the values below";
        break;
      default:
        name = "whole number";
    }
  }
  return field.is_repeated() ? absl::StrCat("list of ", name, "s") : name;
}

void AppendWrapped(absl::string_view text, size_t indent, std::string& out) {
  std::string line(indent, ' ');
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (line.size() > indent && line.size() + 1 + word.size() > kWidth) {
      absl::StrAppend(&out, line, "\n");
      line.assign(indent, ' ');
    }
    absl::StrAppend(&line, line.size() > indent ? " " : "", word);
  }
  if (line.size() > indent) absl::StrAppend(&out, line, "\n");
}

// Returns the comment of the field, followed by the comment of its message type.
std::string CommentOf(const FieldDescriptor& field) {
  const Comments& comments = Comments::OfJobProto();
  std::string own = comments.Of(field.full_name());
  const Descriptor* const inner = Inner(field);
  const std::string of_type = inner == nullptr ? "" : comments.Of(inner->full_name());
  if (own.empty()) return of_type;
  return of_type.empty() ? own : absl::StrCat(own, ". ", of_type);
}

void AppendFields(const Descriptor& message, std::string& out) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const auto* const oneof = field.real_containing_oneof();
    const bool chosen = oneof != nullptr;
    absl::StrAppend(&out, "  ", field.name(), "  (", TypeName(field),
                    chosen ? absl::StrCat("; one ", oneof->name()) : "", ")\n");
    AppendWrapped(CommentOf(field), 6, out);
  }
}

void AppendValues(const EnumDescriptor& type, std::string& out) {
  for (int i = 0; i < type.value_count(); ++i) {
    const auto& value = *type.value(i);
    if (value.number() == 0) continue;
    absl::StrAppend(&out, "  ", EnumName(value), "\n");
    AppendWrapped(Comments::OfJobProto().Of(absl::StrCat(type.full_name(), ".", value.name())), 6,
                  out);
  }
}

}  // namespace

absl::StatusOr<std::string> ExplainField(absl::string_view path) {
  const Descriptor* message = v1::JobSpec::descriptor();
  const FieldDescriptor* field = nullptr;
  std::string come_to;
  for (absl::string_view word : absl::StrSplit(path, '.', absl::SkipEmpty())) {
    word = word.substr(0, word.find('['));  // all items of a list have the same fields
    if (message == nullptr) {
      if (field != nullptr && (field->is_map() || IsStruct(*field)))
        break;  // users choose the keys
      return absl::NotFoundError(
          absl::StrCat(come_to, " is ", TypeName(*field), " and has no field '", word, "'"));
    }
    field = message->FindFieldByName(std::string(word));
    if (field == nullptr) {
      std::vector<std::string> known;
      for (int i = 0; i < message->field_count(); ++i) known.push_back(message->field(i)->name());
      const std::string nearest = NearestName(std::string(word), known);
      return absl::NotFoundError(
          absl::StrCat(come_to.empty() ? "a job file" : come_to, " has no field '", word, "'; ",
                       nearest.empty() ? absl::StrCat("the fields are ", absl::StrJoin(known, ", "))
                                       : absl::StrCat("did you mean '", nearest, "'?")));
    }
    absl::StrAppend(&come_to, come_to.empty() ? "" : ".", word);
    message = Inner(*field);
  }
  std::string out;
  if (field == nullptr) {
    absl::StrAppend(&out, "The job file (docs/job_spec.md)\n");
  } else {
    absl::StrAppend(&out, come_to, "  (", TypeName(*field), ")\n");
    AppendWrapped(CommentOf(*field), 2, out);
    if (field->enum_type() != nullptr) {
      absl::StrAppend(&out, "Values\n");
      AppendValues(*field->enum_type(), out);
    }
  }
  if (message != nullptr) {
    absl::StrAppend(&out, "Fields\n");
    AppendFields(*message, out);
  }
  return out;
}

}  // namespace muster::cli
