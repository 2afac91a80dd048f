#include "lib/checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace muster::safetensors_test {
namespace {

std::string Encoded(absl::string_view json, absl::string_view data) {
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return absl::StrCat(file, json, data);
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& content) {
  const std::string path = testing::TempDir() + "/parsed.safetensors";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return ReadSafetensorsHeader(path);
}

SafetensorsHeader KnownHeader() {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"step", "3"}};
  header.tensors = {{.name = "w", .shape = {2, 3}},
                    {.name = "b \"quoted\"", .shape = {}},
                    {.name = "none", .shape = {0, 4}}};
  return header;
}

TEST(SafetensorsTest, WritesTheExampleOfTheFormatDocument) {
  SafetensorsHeader header{
      .tensors = {{.name = "weight", .shape = {1, 1}}, {.name = "bias", .shape = {1}}},
      .metadata = {{"format", "pt"}, {"job", "line"}, {"step", "500"}}};

  const std::string bytes = EncodeSafetensorsHeader(header);

  const std::string json = R"({"__metadata__":{"format":"pt","job":"line","step":"500"},)"
                           R"("weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                           R"("bias":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  ASSERT_EQ(json.size(), 174);
  EXPECT_EQ(bytes, Encoded(json + std::string(2, ' '), ""));
  EXPECT_EQ(header.tensors[1].offset, 188);
  EXPECT_EQ(header.file_bytes, 192);
}

TEST(SafetensorsTest, EncodedHeaderIsReadBack) {
  SafetensorsHeader header = KnownHeader();
  const std::string bytes = EncodeSafetensorsHeader(header);
  EXPECT_EQ(bytes.size() % 8, 0);

  absl::StatusOr<SafetensorsHeader> read =
      Parse(bytes + std::string(header.file_bytes - bytes.size(), 'x'));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata, header.metadata);
  EXPECT_EQ(read->file_bytes, header.file_bytes);
  ASSERT_EQ(read->tensors.size(), 3);
  for (const TensorEntry& tensor : header.tensors) {
    const TensorEntry* found = read->Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->offset, tensor.offset);
    EXPECT_EQ(found->bytes, tensor.bytes);
  }
  EXPECT_EQ(read->Find("absent"), nullptr);
}

TEST(SafetensorsTest, EveryTruncationIsDataLossWithFileAndOffset) {
  SafetensorsHeader header = KnownHeader();
  const std::string bytes = EncodeSafetensorsHeader(header);
  const std::string file = bytes + std::string(header.file_bytes - bytes.size(), 'x');
  for (size_t length = 0; length < file.size(); ++length) {
    absl::Status status = Parse(file.substr(0, length)).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "parsed.safetensors")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "offset")) << status;
  }
  EXPECT_TRUE(absl::IsDataLoss(Parse(file + "x").status()));
}

TEST(SafetensorsTest, BitFlipIsDataLossOrLeavesAWellFormedHeader) {
  SafetensorsHeader header = KnownHeader();
  const std::string bytes = EncodeSafetensorsHeader(header);
  const std::string file = bytes + std::string(header.file_bytes - bytes.size(), 'x');
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[byte] ^= 1 << bit;
      absl::StatusOr<SafetensorsHeader> read = Parse(damaged);
      if (!read.ok()) {
        ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
        continue;
      }
      // The flip is inside a name or in metadata, and the layout is unchanged. The manifest's hash
      // finds it.
      for (size_t i = 0; i < header.tensors.size(); ++i)
        EXPECT_LE(read->tensors[i].offset + read->tensors[i].bytes, file.size());
    }
  }
}

TEST(SafetensorsTest, RefusesEveryMalformedHeader) {
  const struct {
    std::string json;
    std::string data;
    const char* fault;
  } kCases[] = {
      {"", "", "'{'"},
      {" {}", "", "'{'"},
      {"[]", "", "'{'"},
      {"{", "", "not JSON"},
      {"{} x", "", "not JSON"},
      {R"({"a":1})", "", "needs exactly"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "", "needs exactly"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", "1234",
       "needs exactly"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "1234", "unknown dtype"},
      {R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", "1234", "dtype"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "1234", "shape"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "shape"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234", "shape"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "say otherwise"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "",
       "say otherwise"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", "",
       "say otherwise"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "ascending"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "1234", "pair"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}})", "1234",
       "ascending"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12341234", "expected 0"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234", "beyond the file"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "12341234", "take 4 of 8"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       "123456", "expected 4"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "12", "duplicate key 'a'"},
      {R"({"__metadata__":3})", "", "__metadata__"},
      {R"({"__metadata__":{"a":3}})", "", "not a string"},
  };
  for (const auto& wrong : kCases) {
    absl::Status status = Parse(Encoded(wrong.json, wrong.data)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << wrong.json << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), wrong.fault)) << wrong.json << ": " << status;
  }
}

TEST(SafetensorsTest, AbsurdLengthAllocatesNothing) {
  for (uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 62, ~uint64_t{0}}) {
    std::string content(16, '{');
    std::memcpy(content.data(), &length, 8);
    EXPECT_TRUE(absl::IsDataLoss(Parse(content).status())) << length;
  }
}

// A JSON value takes many times the memory of its text.
TEST(SafetensorsTest, HeaderWithMillionsOfValuesIsRefused) {
  const auto shaped = [](int dimensions) {
    std::string shape = "0";
    for (int i = 1; i < dimensions; ++i) shape += ",0";
    return Parse(Encoded(absl::StrCat(R"({"a":{"dtype":"F32","shape":[)", shape,
                                      R"(],"data_offsets":[0,0]}})"),
                         ""))
        .status();
  };
  EXPECT_TRUE(shaped(64).ok());
  EXPECT_TRUE(absl::StrContains(shaped(65).message(), "tensor 'a': shape has 65 dimensions"));
  const absl::Status many = shaped(4'000'000);
  EXPECT_TRUE(absl::IsDataLoss(many));
  EXPECT_TRUE(absl::StrContains(many.message(), "more than 4000000 values and keys")) << many;
}

TEST(SafetensorsTest, MissingFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ReadSafetensorsHeader(testing::TempDir() + "/absent").status()));
}

// The time must not grow with the square of the number of tensors.
TEST(SafetensorsTest, AHeaderOfManyTensorsIsReadInTime) {
  std::string json = "{";
  for (int i = 0; i < 65536; ++i) {
    absl::StrAppend(&json, i > 0 ? "," : "", "\"w", i,
                    R"(":{"dtype":"U8","shape":[],"data_offsets":[)", i, ",", i + 1, "]}");
  }
  const absl::Time start = absl::Now();
  const auto header = Parse(Encoded(json + "}", std::string(65536, '\0')));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), 65536);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));  // it took a minute, now 0.2 s
}

}  // namespace
}  // namespace muster::safetensors_test
