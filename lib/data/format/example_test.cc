#include "lib/data/format/example.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "lib/data/format/testing/example.pb.h"

namespace muster::example_test {
namespace {

using Kind = Feature::Kind;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

wire::Example Message() {
  wire::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  for (int64_t value : {int64_t{0}, int64_t{127}, int64_t{128}, int64_t{-1}, int64_t{1} << 40}) {
    features["ids"].mutable_int64_list()->add_value(value);
  }
  for (float value : {1.5f, -2.f, 0.f}) {
    features["a longer name of floats"].mutable_float_list()->add_value(value);
  }
  features["image"].mutable_bytes_list()->add_value("JPEG");
  features["nothing"];
  features["empty"].mutable_int64_list();
  return example;
}

// Returns all values of a feature as text, by the parser under test.
std::string ValuesOf(const Feature& feature) {
  switch (feature.kind) {
    case Kind::kFloats: {
      std::vector<float> values(ReadFloats(feature, {}).value_or(0));
      const auto count = ReadFloats(feature, absl::MakeSpan(values));
      if (!count.ok()) return std::string(count.status().message());
      std::vector<uint32_t> bits(values.size());  // tells NaNs apart
      std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
      return absl::StrCat("floats ", absl::StrJoin(bits, " "));
    }
    case Kind::kIntegers: {
      std::vector<int64_t> values(ReadIntegers(feature, {}).value_or(0));
      const auto count = ReadIntegers(feature, absl::MakeSpan(values));
      if (!count.ok()) return std::string(count.status().message());
      return absl::StrCat("integers ", absl::StrJoin(values, " "));
    }
    case Kind::kBytes: {
      const auto bytes = ReadBytes(feature);
      if (!bytes.ok()) return std::string(bytes.status().message());
      return absl::StrCat("bytes ",
                          std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
    }
    default:
      return std::string(ToText(feature.kind));
  }
}

// Returns the same by Protocol Buffers.
std::string ValuesOf(const wire::Example& example, const std::string& name) {
  const auto feature = example.features().feature().find(name);
  if (feature == example.features().feature().end()) return "missing";
  switch (feature->second.kind_case()) {
    case wire::Feature::kFloatList: {
      const auto& values = feature->second.float_list().value();
      std::vector<uint32_t> bits(values.size());
      std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
      return absl::StrCat("floats ", absl::StrJoin(bits, " "));
    }
    case wire::Feature::kInt64List:
      return absl::StrCat("integers ", absl::StrJoin(feature->second.int64_list().value(), " "));
    case wire::Feature::kBytesList: {
      const auto& values = feature->second.bytes_list().value();
      if (values.size() == 1) return absl::StrCat("bytes ", values[0]);
      return absl::StrCat("has ", values.size(), " values of bytes, 1 is needed");
    }
    default:
      return "empty";
  }
}

std::vector<Feature> Find(const FeatureFinder& finder, const std::string& example) {
  std::vector<Feature> found(finder.names().size());
  const absl::Status status = finder.Find(BytesOf(example), absl::MakeSpan(found));
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

// A message with one field 1 of bytes.
std::string Nested(const std::string& content, char field = 1) {
  std::string message(1, static_cast<char>(field * 8 + 2));
  size_t length = content.size();
  for (; length >= 0x80; length >>= 7) message += static_cast<char>(0x80 | (length & 0x7f));
  return message + static_cast<char>(length) + content;
}

// An Example with the feature "x" of these bytes.
std::string WithFeature(const std::string& feature) {
  return Nested(Nested(Nested("x") + Nested(feature, 2)));
}

std::string Fault(const std::string& example) {
  const FeatureFinder finder({"x"});
  std::vector<Feature> found(1);
  const absl::Status status = finder.Find(BytesOf(example), absl::MakeSpan(found));
  if (!status.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  return ValuesOf(found[0]);
}

TEST(ExampleTest, FindsTheWantedFeatures) {
  const FeatureFinder finder(
      {"image", "ids", "a longer name of floats", "other", "nothing", "empty", "id"});
  const std::string bytes = Message().SerializeAsString();
  const std::vector<Feature> found = Find(finder, bytes);
  EXPECT_EQ(ValuesOf(found[0]), "bytes JPEG");
  EXPECT_EQ(ValuesOf(found[1]), "integers 0 127 128 -1 1099511627776");
  std::vector<float> floats(2);
  EXPECT_EQ(ReadFloats(found[2], absl::MakeSpan(floats)).value(), 3);
  EXPECT_THAT(floats, testing::ElementsAre(1.5f, -2.f));
  EXPECT_EQ(found[3].kind, Kind::kMissing);
  EXPECT_EQ(found[4].kind, Kind::kNoList);
  EXPECT_EQ(ValuesOf(found[5]), "integers ");
  EXPECT_EQ(found[6].kind, Kind::kMissing);
}

TEST(ExampleTest, DescribesAllFeatures) {
  EXPECT_EQ(DescribeFeatures(BytesOf(Message().SerializeAsString())).value(),
            "a longer name of floats (floats), empty (integers), ids (integers), image (bytes), "
            "nothing (empty)");
  wire::Example many;
  for (int i = 0; i < 25; ++i) {
    (*many.mutable_features()->mutable_feature())[absl::StrCat(std::string(100, 'f'), 100 + i)];
  }
  EXPECT_THAT(DescribeFeatures(BytesOf(many.SerializeAsString())).value(),
              testing::EndsWith(absl::StrCat(std::string(60, 'f'), " (empty) and 5 more")));
}

TEST(ExampleTest, FindsManyNamesOfAllLengths) {
  std::vector<std::string> names;
  wire::Example example;
  for (int i = 0; i < 300; ++i) {
    names.push_back(absl::StrCat(std::string(i % 20, 'n'), i));
    (*example.mutable_features()->mutable_feature())[names.back()].mutable_int64_list()->add_value(
        i);
  }
  const std::string bytes = example.SerializeAsString();
  const std::vector<Feature> found = Find(FeatureFinder(names), bytes);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(ValuesOf(found[i]), absl::StrCat("integers ", i));
}

TEST(ExampleTest, ReadsNumbersThatAreNotPacked) {
  wire::UnpackedFloats floats;
  for (float value : {1.f, 2.f, 3.f}) floats.add_value(value);
  wire::UnpackedIntegers integers;
  for (int64_t value : {5, -6, 700}) integers.add_value(value);
  EXPECT_EQ(Fault(WithFeature(Nested(floats.SerializeAsString(), 2))),
            "floats 1065353216 1073741824 1077936128");
  EXPECT_EQ(Fault(WithFeature(Nested(integers.SerializeAsString(), 3))), "integers 5 -6 700");
}

TEST(ExampleTest, ReadsIntegersOfAllLengthsAndCountsThoseWithoutRoom) {
  std::mt19937_64 random(7);
  for (int bits = 0; bits <= 64; ++bits) {
    for (int length = 0; length < 70; ++length) {
      wire::Example example;
      auto* list = (*example.mutable_features()->mutable_feature())["x"].mutable_int64_list();
      for (int i = 0; i < length; ++i) {
        const int most = bits == 0 ? static_cast<int>(random() % 65) : bits;
        list->add_value(most == 0 ? 0 : static_cast<int64_t>(random() >> (64 - most)));
      }
      const std::string bytes = example.SerializeAsString();
      const Feature feature = Find(FeatureFinder({"x"}), bytes)[0];
      ASSERT_EQ(ValuesOf(feature), ValuesOf(example, "x"));
      std::vector<int64_t> some(length / 2 + 1, -99);
      ASSERT_EQ(ReadIntegers(feature, absl::MakeSpan(some).first(length / 2)).value(), length);
      ASSERT_EQ(some.back(), -99);
      for (int i = 0; i < length / 2; ++i) ASSERT_EQ(some[i], list->value(i));
      std::vector<int32_t> small(length / 2 + 1, -99);
      const SmallIntegers read =
          ReadSmallIntegers(feature, absl::MakeSpan(small).first(length / 2)).value();
      ASSERT_EQ(read.count, length);
      ASSERT_EQ(small.back(), -99);
      bool fit = true;
      for (int i = 0; i < length / 2; ++i) fit &= list->value(i) >> 31 == 0;
      ASSERT_EQ(read.fit, fit);
      for (int i = 0; fit && i < length / 2; ++i) ASSERT_EQ(small[i], list->value(i));
    }
  }
}

TEST(ExampleTest, TheLastFeatureOfANameCounts) {
  EXPECT_EQ(Fault(Nested(Nested(Nested("x") + Nested(Nested(Nested("one")), 2)) +
                         Nested(Nested(Nested(Nested("two")), 2) + Nested("x")))),
            "bytes two");
}

TEST(ExampleTest, FieldsOfALaterVersionAreSkipped) {
  const std::string more = Nested("more", 9) + std::string("\x50\x05\x5d\1\2\3\4", 7);
  EXPECT_EQ(Fault(more + WithFeature(more + Nested(more + Nested("y")) + more) + more), "bytes y");
}

TEST(ExampleTest, RefusesASequenceExample) {
  wire::SequenceExample sequence;
  (*sequence.mutable_context()->mutable_feature())["x"];
  (*sequence.mutable_feature_lists()->mutable_feature_list())["words"].add_feature();
  EXPECT_THAT(Fault(sequence.SerializeAsString()), testing::HasSubstr("SequenceExample"));
}

TEST(ExampleTest, RefusesDamagedMessages) {
  const std::string ten_bytes(10, '\xff');
  for (const auto& [example, message] : std::vector<std::pair<std::string, std::string>>{
           {"\x0a", "a number has no end"},
           {ten_bytes, "a number has no end"},
           {"\x0a\x05zzz", "ends after the end"},
           {"\x0a" + std::string(9, '\xff') + "\x01", "ends after the end"},
           {std::string("\x02\x00", 2), "no valid number"},
           {"\x0b", "no valid type"},
           {"\x0e\x01", "no valid type"},
           {"\x09\x01\x01", "ends after the end"},
           {std::string("\x08\x01", 2), "features are no message"},
           {Nested("\x08\x01"), "a feature is no message"},
           {Nested(Nested("\x08\x01")), "no name or no value"},
           {WithFeature("\x10\x01"), "a feature has no list"},
           {WithFeature(Nested("") + Nested("", 3)), "several lists"},
           {WithFeature(Nested("") + Nested("")), "several lists"},
           {WithFeature(Nested("\x08\x01")), "a list of bytes has another type"},
           {WithFeature(Nested("")), "has 0 values of bytes"},
           {WithFeature(Nested(Nested("a") + Nested("b"))), "has 2 values of bytes"},
           {WithFeature(Nested(Nested("abc"), 2)), "ends within a float"},
           {WithFeature(Nested("\x08\x01", 2)), "a list of floats has another type"},
           {WithFeature(Nested("\x0d\1\2\3\4", 3)), "a list of integers has another type"},
           {WithFeature(Nested(Nested("\xff\xff"), 3)), "a number has no end"},
           {WithFeature(Nested(Nested("1234567" + ten_bytes + "1"), 3)), "a number has no end"},
       }) {
    EXPECT_THAT(Fault(example), testing::HasSubstr(message));
  }
}

// Changes, cuts and joins messages at random. Values that both parsers find must be equal.
TEST(ExampleTest, ReadsDamagedMessagesAsProtocolBuffersOrRefusesThem) {
  const google::protobuf::LogSilencer silencer;  // it logs each name that is no UTF-8
  const uint32_t seed = 20261129;
  std::mt19937 random(seed);
  const std::string good = Message().SerializeAsString();
  const std::vector<std::string> names = {"ids", "a longer name of floats", "image", "empty"};
  const FeatureFinder finder(names);
  int both = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (random() % 8 == 0) bytes += good;
    std::vector<Feature> found(names.size());
    const absl::Status status = finder.Find(BytesOf(bytes), absl::MakeSpan(found));
    wire::Example example;
    const bool parses = example.ParseFromString(bytes);
    for (size_t n = 0; status.ok() && n < names.size(); ++n) {
      const std::string values = ValuesOf(found[n]);
      if (parses) {
        ASSERT_EQ(values, ValuesOf(example, names[n])) << "seed " << seed << " " << i;
      }
    }
    both += status.ok() && parses;
  }
  EXPECT_GT(both, 1000);
}

}  // namespace
}  // namespace muster::example_test
