#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/hostile/hostile_file.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/source/image_graph.h"
#include "lib/transport/core/crc32c.h"

namespace muster::hostile_records_test {
namespace {

// Returns the header of a record that claims `bytes`.
std::string Header(uint64_t bytes) {
  const std::string length = LittleEndian(bytes, 8);
  const uint32_t crc = Crc32c({reinterpret_cast<const std::byte*>(length.data()), length.size()});
  return length + LittleEndian(std::rotr(crc, 15) + 0xa282ead8U, 4);
}

std::string Records(const std::vector<std::string>& records) {
  std::string file;
  for (const std::string& record : records) AppendTfrecord(record, file);
  return file;
}

std::string Varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text.push_back(static_cast<char>(value | 0x80));
  text.push_back(static_cast<char>(value));
  return text;
}

std::string Tag(int number, int type) { return Varint(number << 3 | type); }

// Returns a field of bytes: a text, a message or packed numbers.
std::string Field(int number, absl::string_view bytes) {
  return absl::StrCat(Tag(number, 2), Varint(bytes.size()), bytes);
}

std::string Bytes(absl::string_view bytes) { return Field(1, Field(1, bytes)); }
std::string Floats(absl::string_view bytes) { return Field(2, Field(1, bytes)); }
std::string Integers(absl::string_view packed) { return Field(3, Field(1, packed)); }

std::string Entry(absl::string_view name, absl::string_view feature) {
  return Field(1, absl::StrCat(Field(1, name), Field(2, feature)));
}

const std::string& TwoFloats() {
  static const auto* const floats =
      new std::string(Floats(std::string("\0\0\x80\x3f\0\0\0\x40", 8)));
  return *floats;
}

std::string Example(absl::string_view target, absl::string_view x = TwoFloats()) {
  return Field(1, absl::StrCat(Entry("x", x), Entry("target", target)));
}

const std::string& Good() {
  static const auto* const good = new std::string(Example(Integers(Varint(3))));
  return *good;
}

class HostileRecordsTest : public testing::Test {
 protected:
  HostileRecordsTest() {
    spec_.mutable_tfrecord()->set_path(path_);
    for (const char* name : {"x", "target"}) {
      (*spec_.mutable_tfrecord()->mutable_inputs())[name].mutable_fixed();
    }
  }

  // Returns the case of a good record, `example` and another good one.
  static HostileFile Second(std::string name, const std::string& example, const std::string& part) {
    return Damaged(std::move(name), Records({Good(), example, Good()}), {place_, part});
  }
  void ExpectOneErrorEach(const std::vector<HostileFile>& files) {
    muster::ExpectOneErrorEach(files, path_, spec_, NumbersGraph());
  }

  inline static const std::string place_ =
      absl::StrCat("record 1 at byte ", Records({Good()}).size());
  const std::string path_ = EmptyFolder("hostile_records") + "/a.tfrecord";
  v1::DataSpec spec_;
};

TEST_F(HostileRecordsTest, FramesOfRecords) {
  const std::string first = Records({Good()}), both = first + first;
  const size_t at = first.size();
  ExpectOneErrorEach({
      Damaged("length with another checksum", Patched(both, at + 8, "none"),
              {place_, "the checksum of the length differs"}),
      Damaged("data with another checksum", Patched(both, both.size() - 4, "none"),
              {place_, "the checksum differs"}),
      Damaged("other data", Patched(both, at + 14, "x"), {place_, "the checksum differs"}),
      Damaged("length of 2^63", first + Header(uint64_t{1} << 63) + "data",
              {place_, "the record has 9223372036854775808 bytes, at most 1073741824"}),
      Damaged("length of 2^64 - 1", first + Header(~uint64_t{0}) + "data",
              {place_, "the record has 18446744073709551615 bytes"}),
      Damaged("length of a tebibyte", first + Header(uint64_t{1} << 40) + "data",
              {place_, "the record has 1099511627776 bytes"}),
      Damaged("length of a gibibyte, and no data", first + Header(1 << 30) + "data",
              {place_, "the file ends within the record"}),
      Damaged("cut in the length", both.substr(0, at + 5),
              {place_, "the file ends after 5 bytes of a header"}),
      Damaged("cut behind the header", both.substr(0, at + 12),
              {place_, "the file ends within the record"}),
      Damaged("cut in the data", both.substr(0, at + 20),
              {place_, "the file ends within the record"}),
      Damaged("cut in the last checksum", both.substr(0, both.size() - 1),
              {place_, "the file ends within the record"}),
      Damaged("bytes behind the records", first + "0123456789abcdef",
              {place_, "the checksum of the length differs"}),
      Damaged("text", "a line of text\nand another one\n",
              {"record 0 at byte 0: the checksum of the length differs; check that this is a"}),
      Invalid("gzip", "\x1f\x8b\x08 and more bytes", {"is compressed with gzip"}),
      TooSmall("no record", "", {"holds no record"}),
  });
}

TEST_F(HostileRecordsTest, MessagesThatCannotBeRead) {
  const std::string overlong(11, '\x80');
  ExpectOneErrorEach({
      Second("bytes that are no message", std::string(40, '\xff'), "a number has no end"),
      Second("text", "some text", "no sound tf.train.Example"),
      Second("wire type 7", Tag(1, 7) + Good(), "a field has no valid type"),
      Second("a group", Tag(2, 3) + Good(), "a field has no valid type"),
      Second("field number 0", Tag(0, 0) + "x" + Good(), "a field has no valid number"),
      Second("a tag without an end", overlong, "a number has no end"),
      Second("features that are a number", Tag(1, 0) + "\x01", "the features are no message"),
      Second("a length beyond the record", Tag(1, 2) + Varint(uint64_t{1} << 40),
             "a field ends after the end of its message"),
      Second("a length of 2^64 - 1", Tag(1, 2) + Varint(~uint64_t{0}),
             "a field ends after the end of its message"),
      Second("an entry beyond the features", Field(1, Tag(1, 2) + Varint(99)),
             "a field ends after the end of its message"),
      Second("a feature that is a number", Field(1, Field(1, Field(1, "x") + Tag(2, 0) + "\x01")),
             "a feature has no name or no value"),
      Second("a sequence", Good() + Field(2, ""), "it is a tf.train.SequenceExample"),
      Second("two lists", Example(Integers("\x03") + TwoFloats()), "a feature has several lists"),
      Second("a list that is a number", Example(Tag(3, 0) + "\x03"), "a feature has no list"),
      Second("an empty record", "", "feature 'x': is missing"),
  });
}

TEST_F(HostileRecordsTest, FeaturesThatDoNotFit) {
  const std::string overlong(11, '\x80');
  const std::string target = "feature 'target': ", x = "feature 'x': ";
  ExpectOneErrorEach({
      Second("a missing feature", Field(1, Entry("x", TwoFloats())), target + "is missing"),
      Second("a feature without a list", Example(""), target + "is empty"),
      Second("no number", Example(Integers("")), target + "has 0 integers; the model's target"),
      Second("two numbers", Example(Integers("\x03\x04")), target + "has 2 integers"),
      Second("a million numbers", Example(Integers(std::string(1'000'000, '\x03'))),
             target + "has 1000000 integers"),
      Second("floats for ids", Example(TwoFloats()), target + "holds floats"),
      Second("bytes for an id", Example(Bytes("cat")), target + "has 3 bytes"),
      Second("an id above the range", Example(Integers("\x0a")),
             target + "number 0 is 10; the model's target takes 0 to 9"),
      Second("an id of 2^40", Example(Integers(Varint(uint64_t{1} << 40))),
             target + "number 0 is 1099511627776"),
      Second("an id of 2^32 + 3", Example(Integers(Varint((uint64_t{1} << 32) + 3))),
             target + "number 0 is 4294967299"),
      Second("a negative id", Example(Integers(Varint(~uint64_t{0}))), target + "number 0 is -1"),
      Second("a packed number without an end", Example(Integers("\x80")), "a number has no end"),
      Second("an overlong packed number", Example(Integers(overlong)), "a number has no end"),
      Second("an unpacked number without an end", Example(Field(3, Tag(1, 0) + "\x80")),
             "a number has no end"),
      Second("an overlong unpacked number", Example(Field(3, Tag(1, 0) + overlong + "\x01")),
             "a number has no end"),
      Second("integers as fixed numbers", Example(Field(3, Tag(1, 5) + "1234")),
             "a list of integers has another type"),
      Second("a float of 3 bytes", Example(Integers("\x03"), Floats("123")),
             "a list of floats ends within a float"),
      Second("a float of 64 bits", Example(Integers("\x03"), Field(2, Tag(1, 1) + "12345678")),
             "a list of floats has another type"),
      Second("one float", Example(Integers("\x03"), Floats("1234")), x + "has 1 floats"),
      Second("two values of bytes",
             Example(Integers("\x03"), Field(1, Field(1, "1234") + Field(1, "1234"))),
             x + "has 2 values of bytes"),
  });
}

TEST_F(HostileRecordsTest, AMessageWithManyFeaturesIsNotRepeatedWhole) {
  std::string features;
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&features, Entry(absl::StrCat("f", i), ""));
  absl::StrAppend(&features, Entry(std::string(100'000, '\xff'), ""));
  ExpectOneErrorEach(
      {Invalid("20,001 other features", Records({Field(1, features)}),
               {"data.tfrecord.inputs.", "no feature '", "in the first 1 records"})});
}

TEST_F(HostileRecordsTest, AnImageInARecord) {
  const std::string photo = EncodeJpeg(TestPicture(32, 24, 3, 1), {.width = 32, .height = 24});
  const auto example = [](absl::string_view image) {
    return Field(1, Entry("input", Bytes(image)) + Entry("target", Integers("\x03")));
  };
  auto& inputs = *spec_.mutable_tfrecord()->mutable_inputs();
  inputs.erase("x");
  inputs["input"].mutable_image();
  v1::Resize& resize = *spec_.mutable_image()->add_train()->mutable_resize();
  resize.set_height(2);
  resize.set_width(2);
  const std::string good = example(photo);
  const std::string place = absl::StrCat("record 1 at byte ", Records({good}).size());
  const auto second = [&](const char* name, absl::string_view image, const std::string& part) {
    return Damaged(name, Records({good, example(image), good}),
                   {place, "feature 'input': " + part});
  };
  muster::ExpectOneErrorEach(
      {second("a JPEG that is cut off", photo.substr(0, 300), "JPEG: Premature end"),
       second("no bytes", "", "the image has no bytes"),
       second("text", "some text", "the image is not a JPEG")},
      path_, spec_, ImageGraph(/*classes=*/10));
}

}  // namespace
}  // namespace muster::hostile_records_test
