#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/hostile/hostile_file.h"

namespace muster::hostile_archives_test {
namespace {

std::string Array() {
  return MakeNpyHeader(NpyType::kF32, std::vector<int64_t>{2}) +
         std::string("\0\0\x80\x3f\0\0\0\x40", 8);
}

// Returns an .npy file of this type and shape, in the layout of Python's dictionary.
std::string ArrayOf(absl::string_view type, absl::string_view order, absl::string_view shape) {
  std::string text =
      absl::StrCat("{'descr': ", type, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }");
  text.resize(117, ' ');
  return absl::StrCat("\x93NUMPY", absl::string_view("\x01\0\x76\0", 4), text, "\n12345678");
}

std::string Sample(const std::string& base) {
  return TarMemberBytes(base + ".npy", Array()) + TarMemberBytes(base + ".cls", "3");
}

// Returns a member with other bytes in its header, and the checksum of them.
std::string WithHeader(std::string member, size_t at, absl::string_view others) {
  member = Patched(std::move(member), at, others);
  SetTarChecksum(member);
  return member;
}

constexpr size_t kSize = 124;  // of a header's field

// An archive of three samples. The second one is hostile, and begins at byte 2,048.
class HostileTarTest : public testing::Test {
 protected:
  HostileTarTest() {
    spec_.mutable_tar()->set_path(path_);
    auto& inputs = *spec_.mutable_tar()->mutable_inputs();
    inputs["x"].set_extension("npy");
    inputs["x"].mutable_array();
    inputs["target"].set_extension("cls");
    inputs["target"].mutable_integer();
  }

  static std::string Archive(const std::string& second) {
    return Sample("a") + second + Sample("c") + TarEnd();
  }
  static std::string Npy(absl::string_view bytes = Array()) {
    return TarMemberBytes("b.npy", bytes);
  }
  static std::string Cls(absl::string_view bytes = "3") { return TarMemberBytes("b.cls", bytes); }

  void ExpectOneErrorEach(const std::vector<HostileFile>& files) {
    muster::ExpectOneErrorEach(files, path_, spec_, NumbersGraph());
  }

  const std::string path_ = EmptyFolder("hostile_tar") + "/a.tar";
  v1::DataSpec spec_;
};

TEST_F(HostileTarTest, Headers) {
  const auto size = [&](absl::string_view bytes) {
    return Archive(WithHeader(Npy(), kSize, bytes) + Cls());
  };
  const std::string member = "member 2 at byte 2048 ", header = "record 2 at byte 2048: ";
  const std::string zeros(3, '\0');
  ExpectOneErrorEach({
      Damaged("another checksum", Archive(Patched(Npy(), 0, "x") + Cls()),
              {header, "the checksum of the header is wrong"}),
      Damaged("a checksum that is text", Archive(Patched(Npy(), 148, "checksum") + Cls()),
              {header, "the checksum of the header is wrong"}),
      Damaged("text", std::string(1024, 'x'),
              {"record 0 at byte 0: the checksum of the header is wrong; is it a tar file?"}),
      Truncated("the largest octal size", size("777777777777"),
                {member, "has 68719476735 bytes, but the file ends at byte "}),
      Damaged("a size with other digits", size("00000000099\0"), {header, "the size is no number"}),
      Damaged("a negative size", size("-0000000001\0"), {header, "the size is no number"}),
      Damaged("a size of 2^63", size("\x80" + zeros + "\x80" + std::string(7, '\0')),
              {header, "the size is no number, or too large"}),
      Damaged("a size of 2^95 - 1", size("\x80" + std::string(11, '\xff')),
              {header, "the size is no number, or too large"}),
      Damaged("a negative size in base 256", size(std::string(12, '\xff')),
              {header, "the size is no number, or too large"}),
      Truncated("a size of 2^62", size("\x80" + zeros + "\x40" + std::string(7, '\0')),
                {member, "has 4611686018427387904 bytes"}),
      Truncated("a size of a tebibyte",
                size("\x80" + zeros + zeros.substr(1) + "\x01" + std::string(5, '\0')),
                {member, "has 1099511627776 bytes"}),
      Invalid("a sparse member", Archive(WithHeader(Npy(), 156, "S") + Cls()),
              {member, "is sparse"}),
      Invalid("a member of another archive", Archive(WithHeader(Npy(), 156, "M") + Cls()),
              {member, "continues another archive"}),
      Truncated("cut in a header", Archive(Npy() + Cls()).substr(0, 2148),
                {"ends at byte 2148, after 2 members, without the mark of an archive's end"}),
      Truncated("cut in a member", Archive(Npy() + Cls()).substr(0, 2570),
                {member, "has 136 bytes, but the file ends at byte 2570"}),
      Truncated("without its end", Sample("a") + Sample("b"),
                {"after 4 members, without the mark"}),
      Invalid("gzip", "\x1f\x8b\x08 and more bytes", {"is compressed with gzip"}),
      TooSmall("no member", TarEnd(), {"the archives hold no sample"}),
  });
}

TEST_F(HostileTarTest, ExtendedHeaders) {
  const auto pax = [](absl::string_view records, char kind = 'x') {
    return Archive(TarMemberBytes("pax", records, kind) + Npy() + Cls());
  };
  const std::string header = "record 2 at byte 2048: ";
  ExpectOneErrorEach({
      Damaged("a long name of 2 MiB",
              Archive(TarMemberBytes("L", std::string(2 << 20, 'a'), 'L') + Npy() + Cls()),
              {header, "an extended header of 2097152 bytes; at most 1048576 are possible"}),
      Damaged("a record beyond the header", pax("99 path=x\n"),
              {header, "a pax record has a wrong length"}),
      Damaged("a record of no bytes", pax("0 path=x\n"),
              {header, "a pax record has a wrong length"}),
      Damaged("a record of 2^64 bytes", pax("18446744073709551616 path=x\n"),
              {header, "a pax record has a wrong length"}),
      Damaged("a record without a value", pax("10 pathab\n"), {header, "a pax record has no '='"}),
      Damaged("a negative size", pax(PaxRecord("size", "-5")),
              {header, "the size '-5' is no number"}),
      Damaged("a size of 2^64", pax(PaxRecord("size", "18446744073709551616")),
              {header, "the size '18446744073709551616' is no number"}),
      Damaged("a size of 2,000 digits", pax(PaxRecord("size", std::string(2000, '9'))),
              {header, "is no number"}),
      Truncated("a size of a tebibyte", pax(PaxRecord("size", "1099511627776")),
                {"member 2 at byte 3072 has 1099511627776 bytes, but the file ends at byte "}),
      Damaged("a path of all members", pax(PaxRecord("path", "b.npy"), 'g'),
              {header, "a global pax header sets the path of all members"}),
      Damaged("a header without a member",
              Sample("a") + TarMemberBytes("pax", PaxRecord("path", "b"), 'x') + TarEnd(),
              {"record 2 at byte 3072: an extended header without a member"}),
  });
}

TEST_F(HostileTarTest, Samples) {
  const std::string sample = "sample 'b' at byte 2560 ";
  ExpectOneErrorEach({
      Invalid("a missing member", Archive(Npy()),
              {sample, "has no member with the extension cls; it has npy"}),
      Invalid("a hard link", Archive(Npy() + TarMemberBytes("b.cls", "", '1')),
              {sample, "has no member with the extension cls"}),
      Invalid("a symbolic link", Archive(Npy() + TarMemberBytes("b.cls", "", '2')),
              {sample, "has no member with the extension cls"}),
      Invalid("a device", Archive(Npy() + TarMemberBytes("b.cls", "", '3')),
              {sample, "has no member with the extension cls"}),
      Invalid("two members with one name", Archive(Npy() + Cls() + Cls("4")),
              {sample, "has two members with the extension cls"}),
      Damaged("a class that is text", Archive(Npy() + Cls("cat")),
              {"record 1 at byte 3584: 'cat' is no integer"}),
      Damaged("a class of no bytes", Archive(Npy() + Cls("")),
              {"record 1 at byte 3584: '' is no integer"}),
      Damaged("a class of 100 digits", Archive(Npy() + Cls(std::string(100, '1'))),
              {"record 1 at byte 3584: '111", "is no integer"}),
      Damaged("a class of 2^40", Archive(Npy() + Cls("1099511627776")),
              {"record 1 at byte 3584: 1099511627776 is not in the model's range, 0 to 9"}),
      Invalid("a class above the range", Archive(Npy() + Cls("10")),
              {"record 1 at byte 3584", "numbers up to 10 do not fit the model's 10 classes"}),
      Invalid("a negative class", Archive(Npy() + Cls("-1")),
              {"record 1 at byte 3584", "-1 is not in the model's range, 0 to 9"}),
  });
}

TEST_F(HostileTarTest, Arrays) {
  const auto array = [](const char* name, absl::string_view bytes, const std::string& part) {
    return Damaged(name, Archive(Npy(bytes) + Cls()), {"record 1 at byte 2560: ", part});
  };
  ExpectOneErrorEach({
      array("no bytes", "", "0 bytes"),
      array("text", "text", "not an .npy file"),
      array("cut in its header", Array().substr(0, 60), "ends inside its header"),
      array("cut in its elements", Array().substr(0, 130), "2 of 8 bytes of [2]"),
      array("bytes behind it", Array() + "x", "1 bytes follow the array"),
      array("Fortran's order", ArrayOf("'<f4'", "True", "(2,)"), "is in Fortran order"),
      array("objects", ArrayOf("'|O'", "False", "(2,)"), "elements are '|O'"),
      array("records", ArrayOf("[('a', '<f4')]", "False", "(2,)"), "the header cannot be read"),
      array("other rows", ArrayOf("'<f4'", "False", "(1, 2)"), "the array is [1, 2]"),
      array("2^60 elements", ArrayOf("'<f4'", "False", "(1152921504606846976, 2)"),
            "8 of 9223372036854775808 bytes"),
      array("2^124 elements",
            ArrayOf("'<f4'", "False", "(4611686018427387904, 4611686018427387904)"),
            "is too large"),
  });
}

TEST_F(HostileTarTest, Json) {
  v1::TarInput& target = (*spec_.mutable_tar()->mutable_inputs())["target"];
  target.set_extension("json");
  target.mutable_json()->set_field("label");
  const auto sample = [](const std::string& base, const std::string& text) {
    return TarMemberBytes(base + ".npy", Array()) + TarMemberBytes(base + ".json", text);
  };
  const std::string good = R"({"label": 3})";
  const auto json = [&](const char* name, const std::string& text, const std::string& part) {
    return Damaged(name, sample("a", good) + sample("b", text) + sample("c", good) + TarEnd(),
                   {"record 1 at byte 3584: ", part});
  };
  constexpr int kDepth = 200'000;
  ExpectOneErrorEach({
      json("no text", "", "is no JSON text"),
      json("an open object", R"({"label": 3)", "is no JSON text"),
      json("an open list of lists", std::string(kDepth, '['), "is no JSON text"),
      json("a list of lists", std::string(kDepth, '[') + std::string(kDepth, ']'),
           "has no field label"),
      json("lists for a number",
           R"({"label": [)" + std::string(kDepth, '[') + std::string(kDepth, ']') + "]}",
           "the field label has array"),
      json("text for a number", "{\"label\": \"\\ud83d\\ude00" + std::string(2000, 'x') + "\"}",
           "the field label has string"),
      json("bytes that are no UTF-8", "{\"label\": \"\xff\xfe\"}", "is no JSON text"),
      json("a fraction", R"({"label": 3.5})", "has number 3.5 where the model reads an id"),
      json("a large number", R"({"label": 18446744073709551615})", "is not in the model's range"),
      json("17 MiB", "\"" + std::string(17 << 20, 'x') + "\"", "a JSON text of 17825794 bytes"),
  });
}

TEST_F(HostileTarTest, NamesLeadNowhere) {
  for (const std::string base : {"/etc/b", "../../b", "b\n", "\xff\xfe", "a/../b"}) {
    SCOPED_TRACE(base);
    WriteFile(path_, Archive(Sample(base)));
    EXPECT_TRUE(ErrorsOf(spec_, NumbersGraph()).empty());
  }
}

}  // namespace
}  // namespace muster::hostile_archives_test
