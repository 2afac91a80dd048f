// Checks that the API stays compatible, and that new parts follow the naming rules.
// api.golden has one line for every field, enum value and method. A line that disappears or changes
// breaks existing clients: that needs a v2. A new line is compatible. To accept it, run this test
// with MUSTER_WRITE_GOLDEN=FILE and replace the golden file with FILE.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/admin.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster::api_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;

std::vector<const FileDescriptor*> Files() {
  return {v1::AccessToken::descriptor()->file(), v1::Checkpoint::descriptor()->file(),
          v1::Hello::descriptor()->file(), v1::Graph::descriptor()->file(),
          v1::JobSpec::descriptor()->file(), v1::JobPlan::descriptor()->file(),
          v1::BackupRequest::descriptor()->file(),
          // This file has no message.
          DescriptorPool::generated_pool()->FindFileByName("proto/muster/v1/member.proto")};
}

template <typename Visit>
void ForEachMessage(const Descriptor& message, const Visit& visit) {
  visit(message);
  for (int i = 0; i < message.nested_type_count(); ++i) {
    ForEachMessage(*message.nested_type(i), visit);
  }
}
template <typename Visit>
void ForEachMessage(const Visit& visit) {
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      ForEachMessage(*file->message_type(i), visit);
    }
  }
}
template <typename Visit>
void ForEachEnum(const Visit& visit) {
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->enum_type_count(); ++i) visit(*file->enum_type(i));
  }
  ForEachMessage([&](const Descriptor& message) {
    for (int i = 0; i < message.enum_type_count(); ++i) visit(*message.enum_type(i));
  });
}
template <typename Visit>
void ForEachMethod(const Visit& visit) {
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        visit(*file->service(i)->method(j));
      }
    }
  }
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

std::set<std::string> DescribeApi() {
  std::set<std::string> lines;
  ForEachMessage([&](const Descriptor& message) {
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      const auto* const oneof = field.real_containing_oneof();
      lines.insert(absl::StrCat("field ", field.full_name(), " ", field.number(),
                                field.is_repeated()    ? " repeated "
                                : field.has_presence() ? " optional "
                                                       : " ",
                                TypeOf(field), oneof ? " of " : "", oneof ? oneof->name() : ""));
    }
  });
  ForEachEnum([&](const EnumDescriptor& type) {
    for (int i = 0; i < type.value_count(); ++i) {
      lines.insert(absl::StrCat("value ", type.full_name(), ".", type.value(i)->name(), " ",
                                type.value(i)->number()));
    }
  });
  ForEachMethod([&](const MethodDescriptor& method) {
    lines.insert(
        absl::StrCat("method ", method.full_name(), method.client_streaming() ? " stream " : " ",
                     method.input_type()->full_name(), method.server_streaming() ? " stream " : " ",
                     method.output_type()->full_name()));
  });
  return lines;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

bool IsLowerSnake(absl::string_view name) {
  return !name.empty() && absl::ascii_islower(name[0]) && std::ranges::all_of(name, [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  }) && !absl::StrContains(name, "__");
}
bool IsUpperCamel(absl::string_view name) {
  return !name.empty() && absl::ascii_isupper(name[0]) &&
         std::ranges::all_of(name, [](char c) { return absl::ascii_isalnum(c); });
}
std::string UpperSnake(absl::string_view camel) {
  std::string snake;
  for (const char c : camel) {
    if (absl::ascii_isupper(c) && !snake.empty()) snake += '_';
    snake += absl::ascii_toupper(c);
  }
  return snake;
}

TEST(ApiTest, NoFieldValueOrMethodIsRemovedOrChanged) {
  const std::set<std::string> now = DescribeApi();
  if (const char* path = std::getenv("MUSTER_WRITE_GOLDEN"); path != nullptr) {
    std::ofstream file(path);
    for (const std::string& line : now) file << line << "\n";
  }
  const std::string golden = ReadAll("proto/muster/v1/api.golden");
  const std::set<std::string> before = absl::StrSplit(golden, '\n', absl::SkipEmpty());
  ASSERT_GT(before.size(), 400) << "the golden file was not found";
  for (const std::string& line : before) {
    EXPECT_TRUE(now.contains(line)) << "incompatible: '" << line << "' was removed or changed";
  }
  for (const std::string& line : now) {
    EXPECT_TRUE(before.contains(line)) << "new: '" << line << "' is not in api.golden yet";
  }
}

TEST(ApiTest, EveryFileIsInThePackageAndFolderOfTheApi) {
  for (const FileDescriptor* file : Files()) {
    EXPECT_EQ(file->package(), "muster.v1") << file->name();
    EXPECT_TRUE(absl::StartsWith(file->name(), "proto/muster/v1/")) << file->name();
    EXPECT_EQ(file->syntax(), FileDescriptor::SYNTAX_PROTO3) << file->name();
  }
}

// protoc-gen-go refuses a file without go_package. AIP-191 requires the Java options.
TEST(ApiTest, EveryFileHasTheOptionsForGoAndJava) {
  google::protobuf::FileDescriptorSet files;
  ASSERT_TRUE(files.ParseFromString(ReadAll("proto/muster/v1/all.descriptors")));
  ASSERT_GE(files.file_size(), 9);
  for (const auto& file : files.file()) {
    const google::protobuf::FileOptions& options = file.options();
    EXPECT_EQ(options.go_package(), "muster.io/proto/muster/v1;musterv1") << file.name();
    EXPECT_EQ(options.java_package(), "io.muster.v1") << file.name();
    EXPECT_TRUE(options.java_multiple_files()) << file.name();
    std::string stem = file.name().substr(file.name().rfind('/') + 1);
    stem[0] = absl::ascii_toupper(stem[0]);
    EXPECT_EQ(options.java_outer_classname(), absl::StrReplaceAll(stem, {{".proto", "Proto"}}));
  }
}

TEST(ApiTest, NamesFollowTheStyleOfProtobuf) {
  ForEachMessage([](const Descriptor& message) {
    EXPECT_TRUE(IsUpperCamel(message.name())) << message.full_name();
    for (int i = 0; i < message.field_count(); ++i) {
      EXPECT_TRUE(IsLowerSnake(message.field(i)->name())) << message.field(i)->full_name();
    }
    for (int i = 0; i < message.oneof_decl_count(); ++i) {
      const auto& oneof = *message.oneof_decl(i);
      const bool is_made_up = oneof.name()[0] == '_';  // of an `optional` field
      EXPECT_TRUE(is_made_up || IsLowerSnake(oneof.name())) << oneof.full_name();
    }
  });
  ForEachMethod([](const MethodDescriptor& method) {
    EXPECT_TRUE(IsUpperCamel(method.name())) << method.full_name();
    EXPECT_TRUE(absl::EndsWith(method.service()->name(), "Service")) << method.full_name();
  });
}

// If a sender does not set an enum, its value is 0.
TEST(ApiTest, EveryEnumBeginsWithUnspecified) {
  // The values of these enums have other prefixes, or none. They are older than the rule, and stay.
  static const std::set<std::string> kOlder = {
      "CompressionKind", "DType",      "JobState",  "MemberJobState",
      "OnNonFinite",     "Precision",  "Role",      "SyncMode",
      "SnapshotOutcome", "TokenScope", "WireValues"};
  ForEachEnum([](const EnumDescriptor& type) {
    const std::string prefix = UpperSnake(type.name()) + "_";
    ASSERT_NE(type.FindValueByNumber(0), nullptr) << type.full_name();
    EXPECT_TRUE(absl::EndsWith(type.FindValueByNumber(0)->name(), "_UNSPECIFIED"))
        << type.full_name();
    if (kOlder.contains(type.name())) return;
    for (int i = 0; i < type.value_count(); ++i) {
      EXPECT_TRUE(absl::StartsWith(type.value(i)->name(), prefix)) << type.value(i)->full_name();
    }
  });
}

// Otherwise a new field for one method would also appear in another method.
TEST(ApiTest, EveryMethodHasARequestOfItsOwn) {
  std::map<std::string, std::string> users;
  ForEachMethod([&](const MethodDescriptor& method) {
    if (method.name() == "Attach") return;  // a stream of reports and directives
    EXPECT_EQ(method.input_type()->name(), method.name() + "Request") << method.full_name();
    EXPECT_TRUE(users.emplace(method.input_type()->name(), method.name()).second)
        << method.full_name();
    const std::string& output = method.output_type()->name();
    const bool is_resource = output == "Job" || output == "Checkpoint" || output == "AccessToken" ||
                             output == "ServerInfo" || output == "ShardSlice";
    EXPECT_TRUE(is_resource || output == "Empty" || output == method.name() + "Response")
        << method.full_name() << " returns " << output;
  });
}

TEST(ApiTest, EveryMethodHasAComment) {
  int methods = 0;
  for (const FileDescriptor* file : Files()) {
    const std::vector<std::string> lines = absl::StrSplit(ReadAll(file->name()), '\n');
    for (size_t i = 1; i < lines.size(); ++i) {
      if (!absl::StartsWith(lines[i], "  rpc ")) continue;
      ++methods;
      EXPECT_TRUE(absl::StartsWith(lines[i - 1], "  // ")) << file->name() << ": " << lines[i];
    }
  }
  EXPECT_EQ(methods, 33) << "the files were not found, or there is a new method";
}

}  // namespace
}  // namespace muster::api_test
