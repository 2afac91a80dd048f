// Checks that docs/reference/api.md matches the protos: services, messages and values, with their
// comments.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "docs/reference_page.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace muster::api_reference_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

constexpr char kBeginning[] =
    "# The API\n\n"
    "Made from the comments of [`proto/muster/v1`](../../proto/muster/v1) by "
    "`//proto/muster/v1:api_test`; change them there. What `muster -o json` prints and\n"
    "[/api/v1](../status_page.md#for-scripts-apiv1) answers are these messages. Numbers of fields "
    "and values never change. Errors carry reasons: [errors.md](errors.md).\n";

// Escapes text for a cell of a Markdown table.
std::string Cell(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "&lt;"}, {"*", "\\*"}, {"](", "]\\("}});
}

// Returns the comments before and after the declaration as one line.
template <typename Described>
std::string CommentOf(const Described& described) {
  google::protobuf::SourceLocation place;
  if (!described.GetSourceLocation(&place)) return "";
  std::vector<absl::string_view> words;
  for (const std::string* comment : {&place.leading_comments, &place.trailing_comments}) {
    // A heading between rulers of dashes belongs to the file, not to the declaration that follows.
    if (absl::StrContains(*comment, "-----")) continue;
    for (const absl::string_view word :
         absl::StrSplit(*comment, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      words.push_back(word);
    }
  }
  return Cell(absl::StrJoin(words, " "));
}

// Returns the type's name, as a link if the type is ours: "Job", "google.protobuf.Duration".
template <typename Type>
std::string Link(const Type& type) {
  if (type.file()->package() != "muster.v1") return type.full_name();
  // The name of a nested type includes the name of its message.
  const std::string name = type.full_name().substr(sizeof("muster.v1.") - 1);
  return absl::StrCat("[", name, "](#",
                      absl::StrReplaceAll(absl::AsciiStrToLower(name), {{".", ""}}), ")");
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map of ", TypeOf(*field.message_type()->map_key()), " to ",
                        TypeOf(*field.message_type()->map_value()));
  }
  const std::string type = field.message_type() != nullptr ? Link(*field.message_type())
                           : field.enum_type() != nullptr  ? Link(*field.enum_type())
                                                           : field.type_name();
  const auto* const oneof = field.real_containing_oneof();
  return absl::StrCat(field.is_repeated() ? "repeated " : "", type,
                      oneof == nullptr ? "" : absl::StrCat("; one ", oneof->name()));
}

void AppendHeading(absl::string_view mark, absl::string_view name, const std::string& comment,
                   std::string& page) {
  absl::StrAppend(&page, "\n", mark, " ", name, "\n\n");
  if (!comment.empty()) absl::StrAppend(&page, comment, "\n\n");
}

void AppendService(const ServiceDescriptor& service, std::string& page) {
  AppendHeading("##", service.name(), CommentOf(service), page);
  absl::StrAppend(&page, "| method | request | answer | |\n|---|---|---|---|\n");
  for (int i = 0; i < service.method_count(); ++i) {
    const auto& method = *service.method(i);
    absl::StrAppend(&page, "| `", method.name(), "` | ",
                    method.client_streaming() ? "stream of " : "", Link(*method.input_type()),
                    " | ", method.server_streaming() ? "stream of " : "",
                    Link(*method.output_type()), " | ", CommentOf(method), " |\n");
  }
}

void AppendEnum(const EnumDescriptor& type, std::string& page) {
  AppendHeading("###", type.full_name().substr(sizeof("muster.v1.") - 1), CommentOf(type), page);
  absl::StrAppend(&page, "| value | number | |\n|---|---|---|\n");
  for (int i = 0; i < type.value_count(); ++i) {
    absl::StrAppend(&page, "| `", type.value(i)->name(), "` | ", type.value(i)->number(), " | ",
                    CommentOf(*type.value(i)), " |\n");
  }
}

void AppendMessage(const Descriptor& message, std::string& page) {
  if (message.options().map_entry()) return;
  AppendHeading("###", message.full_name().substr(sizeof("muster.v1.") - 1), CommentOf(message),
                page);
  if (message.field_count() > 0) {
    absl::StrAppend(&page, "| field | number | type | |\n|---|---|---|---|\n");
  } else {
    absl::StrAppend(&page, "No fields.\n");
  }
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    absl::StrAppend(&page, "| `", field.name(), "` | ", field.number(), " | ", TypeOf(field), " | ",
                    CommentOf(field), " |\n");
  }
  for (int i = 0; i < message.enum_type_count(); ++i) AppendEnum(*message.enum_type(i), page);
  for (int i = 0; i < message.nested_type_count(); ++i) {
    AppendMessage(*message.nested_type(i), page);
  }
}

TEST(ApiReferenceTest, ThePageMatchesTheComments) {
  // protoc has written this file. Descriptors that are compiled into programs have no comments.
  std::ifstream set("proto/muster/v1/api.descriptors", std::ios::binary);
  google::protobuf::FileDescriptorSet files;
  ASSERT_TRUE(files.ParseFromIstream(&set));
  DescriptorPool pool;
  std::string services, types;
  for (const auto& proto : files.file()) {
    const FileDescriptor* const file = pool.BuildFile(proto);
    ASSERT_NE(file, nullptr) << proto.name();
    if (file->package() != "muster.v1") continue;
    for (int i = 0; i < file->service_count(); ++i) AppendService(*file->service(i), services);
    absl::StrAppend(&types, "\n## ", absl::StripPrefix(file->name(), "proto/muster/v1/"), "\n");
    for (int i = 0; i < file->message_type_count(); ++i) {
      AppendMessage(*file->message_type(i), types);
    }
    for (int i = 0; i < file->enum_type_count(); ++i) AppendEnum(*file->enum_type(i), types);
  }
  ASSERT_GT(services.size(), 5000) << "the comments were not found";

  ExpectReferencePage("api.md", absl::StrCat(kBeginning, services, types),
                      "//proto/muster/v1:api_test");
}

}  // namespace
}  // namespace muster::api_reference_test
