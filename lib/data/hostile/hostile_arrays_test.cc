#include <zlib.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/zip_writer.h"
#include "lib/data/hostile/hostile_file.h"
#include "lib/data/source/image_graph.h"

namespace muster::hostile_arrays_test {
namespace {

// Returns an .npy file of this type and shape, as Python writes it.
std::string Npy(absl::string_view type, absl::string_view order, absl::string_view shape,
                absl::string_view data) {
  std::string text =
      absl::StrCat("{'descr': ", type, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }");
  text.resize(117, ' ');
  return absl::StrCat("\x93NUMPY", absl::string_view("\x01\0\x76\0", 4), text, "\n", data);
}

std::string Numbers() { return Npy("'<f4'", "False", "(3, 2)", std::string(24, '\0')); }
std::string Ids(absl::string_view ids = absl::string_view("\1\2\3", 3)) {
  return Npy("'|u1'", "False", "(3,)", ids);
}

struct Member {
  std::string name, content;
};

std::string Zip(const std::vector<Member>& members) {
  ZipWriter writer;
  std::string archive;
  for (const Member& member : members) {
    const auto* bytes = reinterpret_cast<const Bytef*>(member.content.data());
    const auto crc = static_cast<uint32_t>(crc32_z(0, bytes, member.content.size()));
    absl::StrAppend(&archive, writer.Next(member.name, crc, member.content.size()), member.content);
  }
  return archive + writer.End();
}

class HostileNpzTest : public testing::Test {
 protected:
  HostileNpzTest() {
    spec_.mutable_npz()->set_path(path_);
    auto& inputs = *spec_.mutable_npz()->mutable_inputs();
    inputs["x"] = "numbers";
    inputs["target"] = "ids";
  }
  void ExpectOneErrorEach(const std::vector<HostileFile>& files) {
    muster::ExpectOneErrorEach(files, path_, spec_, NumbersGraph());
  }

  const std::string path_ = EmptyFolder("hostile_npz") + "/a.npz";
  v1::DataSpec spec_;
};

// Places in an entry of the directory, and behind it in its zip64 field.
constexpr size_t kFlags = 8, kMethod = 10, kName = 46;

TEST_F(HostileNpzTest, Archives) {
  const std::string zip = Zip({{"numbers.npy", Numbers()}, {"ids.npy", Ids()}});
  const size_t numbers = zip.find("PK\x01\x02"), ids = zip.find("PK\x01\x02", numbers + 4);
  const size_t zip64 = ids + kName + 7, content = zip64 + 4;  // content, stored, offset
  const size_t end64 = zip.find("PK\x06\x06"), locator = zip.find("PK\x06\x07");
  const std::string local = zip.substr(0, numbers);
  const size_t header = local.rfind("PK\x03\x04");
  const std::string tebibyte = LittleEndian(uint64_t{1} << 40, 8);
  const std::string ids_name = "member 'ids.npy'";
  ExpectOneErrorEach({
      Truncated("no bytes", "", {"lacks the directory at its end"}),
      Truncated("text", "some text", {"lacks the directory at its end"}),
      Truncated("cut", zip.substr(0, zip.size() - 5), {"lacks the directory at its end"}),
      Invalid("bytes before it", "12345" + zip, {"lacks its zip64 record"}),
      Invalid("gzip", "\x1f\x8b\x08 and more bytes", {"is compressed with gzip"}),
      Invalid("a compressed member",
              Patched(Patched(zip, ids + kMethod, "\x08"), header + 8, "\x08"),
              {"array 'ids' is compressed", "run: muster data convert "}),
      Invalid("an encrypted member", Patched(zip, ids + kFlags, "\x01"),
              {ids_name, "is encrypted"}),
      Invalid("a header with another name", Patched(zip, header + 30, "IDS"),
              {ids_name, "its header differs from the directory"}),
      Invalid("a method in one place", Patched(zip, header + 8, "\x08"),
              {ids_name, "its header differs from the directory"}),
      Invalid("a size of the content that lies", Patched(zip, content, LittleEndian(999, 8)),
              {"array 'ids': 131 bytes in the archive for 999"}),
      Invalid("a size of a tebibyte", Patched(zip, content + 8, tebibyte),
              {ids_name, "is outside the file"}),
      Invalid("both sizes of a tebibyte", Patched(zip, content, tebibyte + tebibyte),
              {ids_name, "is outside the file"}),
      Invalid("a content of 2^63 bytes", Patched(zip, content, LittleEndian(uint64_t{1} << 63, 8)),
              {ids_name, "is outside the file"}),
      Invalid("an offset of 2^63", Patched(zip, content + 16, LittleEndian(uint64_t{1} << 63, 8)),
              {ids_name, "is outside the file"}),
      Invalid("no zip64 field", Patched(zip, zip64, "\x02"), {ids_name, "lacks its zip64 numbers"}),
      Invalid("a zip64 field beyond the entry", Patched(zip, zip64 + 2, "\xff"),
              {ids_name, "lacks its zip64 numbers"}),
      Invalid("members that overlap", Patched(zip, content + 16, LittleEndian(1, 8)),
              {"member 'numbers.npy' overlaps"}),
      Invalid("two members with one name",
              Zip({{"ids.npy", Ids()}, {"ids.npy", Ids()}, {"numbers.npy", Numbers()}}),
              {"has two members with the name 'ids.npy'"}),
      Invalid("a directory of a tebibyte", Patched(zip, end64 + 40, tebibyte),
              {"a directory of 1099511627776 bytes"}),
      Invalid("a directory elsewhere", Patched(zip, end64 + 48, tebibyte),
              {"the directory of the archive is not where it should be"}),
      Invalid("2^40 members", Patched(zip, end64 + 32, tebibyte), {"1099511627776 members"}),
      Invalid("one more member", Patched(zip, end64 + 32, "\x03"),
              {"the directory of the archive cannot be read at byte "}),
      Invalid("one member less", Patched(zip, end64 + 32, "\x01"),
              {"bytes follow the last member of the directory"}),
      Invalid("an entry of another kind", Patched(zip, ids, "XX"),
              {absl::StrCat("the directory of the archive cannot be read at byte ", ids)}),
      Invalid("a locator that leads elsewhere", Patched(zip, locator + 8, tebibyte),
              {"lacks its zip64 record"}),
      Damaged("content with another CRC", Patched(zip, header + 30 + 7 + 20 + 130, "x"),
              {"array 'ids': at byte ", "the CRC differs"}),
      Invalid("no such array", Zip({{"numbers.npy", Numbers()}}),
              {"has no array 'ids'; it has 'numbers'"}),
  });
}

TEST_F(HostileNpzTest, Arrays) {
  const auto numbers = [](const char* name, const std::string& array, const std::string& part) {
    return Invalid(name, Zip({{"numbers.npy", array}, {"ids.npy", Ids()}}),
                   {"array 'numbers'", part});
  };
  const auto ids = [](const char* name, const std::string& array, const std::string& part) {
    return Invalid(name, Zip({{"numbers.npy", Numbers()}, {"ids.npy", array}}), {part});
  };
  const std::string data(24, '\0');
  const std::string good = Numbers();
  ExpectOneErrorEach({
      numbers("Fortran's order", Npy("'<f4'", "True", "(3, 2)", data), "is in Fortran order"),
      numbers("objects", Npy("'|O'", "False", "(3, 2)", data), "elements are '|O'"),
      numbers("big-endian numbers", Npy("'>f4'", "False", "(3, 2)", data), "elements are '>f4'"),
      numbers("records", Npy("[('a', '<f4')]", "False", "(3,)", data), "the header cannot be read"),
      numbers("code for a shape", Npy("'<f4'", "False", "__import__('os')", data),
              "the header cannot be read"),
      numbers("a negative size", Npy("'<f4'", "False", "(-3, 2)", data),
              "the header cannot be read"),
      numbers("2^124 elements",
              Npy("'<f4'", "False", "(4611686018427387904, 4611686018427387904)", data),
              "is too large"),
      numbers("another version", Patched(good, 6, "\x09"), "format version 9"),
      numbers("a header of 4 gigabytes",
              Patched(good, 6, absl::string_view("\x02\0\xff\xff\xff\xff", 6)),
              "a header of 4294967295 bytes"),
      numbers("text", "some text", "not an .npy file"),
      numbers("bytes behind it", good + "x", "1 bytes follow the array"),
      numbers("other rows", Npy("'<f4'", "False", "(2, 3)", data), "[2, 3] but the model's x is"),
      ids("fewer rows", Npy("'|u1'", "False", "(2,)", "\1\2"), "2 samples, but x has 3"),
      ids("an id above the range", Ids("\1\x0a\3"),
          "array 'ids': 10 in row 1; the model takes 0 to 9"),
      ids("floats for ids", Npy("'<f4'", "False", "(3,)", std::string(12, '\0')),
          "f32 but the model's target are ids"),
  });
}

class HostileNpyTest : public testing::Test {
 protected:
  HostileNpyTest() {
    auto& inputs = *spec_.mutable_npy()->mutable_inputs();
    inputs["x"] = path_;
    inputs["target"] = WriteFile(folder_ + "/ids.npy", Ids());
  }

  const std::string folder_ = EmptyFolder("hostile_npy");
  const std::string path_ = folder_ + "/numbers.npy";
  v1::DataSpec spec_;
};

TEST_F(HostileNpyTest, Files) {
  const std::string good = Numbers(), data(24, '\0');
  ExpectOneErrorEach(
      {Truncated("no bytes", "", {"the file is empty"}),
       Truncated("cut in the magic", good.substr(0, 4), {"4 bytes"}),
       Truncated("cut in the length", good.substr(0, 9), {"9 bytes"}),
       Truncated("cut in the header", good.substr(0, 60), {"ends inside its header"}),
       Truncated("cut in the elements", good.substr(0, good.size() - 1),
                 {"23 of 24 bytes of [3, 2]"}),
       Truncated("a tebibyte of elements", Npy("'<f4'", "False", "(137438953472, 2)", data),
                 {"24 of 1099511627776 bytes"}),
       Invalid("text", "some text", {"not an .npy file"}),
       Invalid("Fortran's order", Npy("'<f4'", "True", "(3, 2)", data), {"is in Fortran order"}),
       Invalid("objects", Npy("'|O'", "False", "(3, 2)", data), {"elements are '|O'"}),
       TooSmall("no row", Npy("'<f4'", "False", "(0, 2)", ""), {"holds no sample"})},
      path_, spec_, NumbersGraph());
}

// Three images of 3 x 2 x 2, and their labels.
class HostileIdxTest : public testing::Test {
 protected:
  static std::string Header(char type, const std::vector<uint32_t>& shape) {
    std::string header = {0, 0, type, static_cast<char>(shape.size())};
    for (const uint32_t size : shape) {
      for (int shift : {24, 16, 8, 0}) header.push_back(static_cast<char>(size >> shift));
    }
    return header;
  }
  static std::string Images() { return Header(8, {3, 3, 2, 2}) + std::string(36, '\0'); }
  static std::string Labels() { return Header(8, {3}) + "\1\2\3"; }

  const std::string folder_ = EmptyFolder("hostile_idx");
  const std::string images_ = WriteFile(folder_ + "/images", Images());
  const std::string labels_ = WriteFile(folder_ + "/labels", Labels());
  v1::DataSpec spec_;
};

TEST_F(HostileIdxTest, Files) {
  spec_.mutable_idx()->set_images(images_);
  spec_.mutable_idx()->set_labels(labels_);
  uLongf size = 1000;
  std::string deflated(size, '\0');
  compress(reinterpret_cast<Bytef*>(deflated.data()), &size,
           reinterpret_cast<const Bytef*>(Images().data()), Images().size());
  // A gzip stream is a deflated one between a header and a CRC.
  const std::string gzip = std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) +
                           deflated.substr(2, size - 6) + LittleEndian(0, 4) + LittleEndian(52, 4);
  ExpectOneErrorEach(
      {Truncated("no bytes", "", {"0 bytes, no IDX magic"}),
       Truncated("two bytes", std::string(2, '\0'), {"2 bytes, no IDX magic"}),
       Invalid("text", "some text", {"not an IDX file of unsigned bytes"}),
       Invalid("floats", Header(13, {3, 3, 2, 2}) + std::string(36, '\0'),
               {"not an IDX file of unsigned bytes"}),
       Truncated("255 dimensions", Patched(Images(), 3, "\xff"),
                 {"ends inside its 255 dimensions"}),
       TooSmall("no image", Header(8, {0, 3, 2, 2}), {"dimension 0 is 0"}),
       Invalid("2^128 pixels", Header(8, std::vector<uint32_t>(4, 0xffffffff)),
               {"dimensions 4294967295 x 4294967295", "exceed"}),
       Truncated("2^35 pixels", Header(8, {1u << 30, 8, 2, 2}), {"0 of 34359738368 elements"}),
       Truncated("cut", Images().substr(0, 50), {"30 of 36 elements"}),
       Invalid("bytes behind it", Images() + "x", {"bytes follow the 36 elements"}),
       Invalid("labels for images", Labels(), {"1 dimensions, images have 3 or 4"}),
       Truncated("gzip that is cut off", gzip.substr(0, gzip.size() - 12),
                 {"the gzip stream ends early"}),
       Invalid("gzip with another CRC", gzip, {"damaged gzip stream: "})},
      images_, spec_, ImageGraph(/*classes=*/10));
  WriteFile(images_, Images());
  ExpectOneErrorEach(
      {Invalid("fewer labels", Header(8, {2}) + "\1\2", {"2 labels for 3 images"}),
       Invalid("a label above the range", Header(8, {3}) + "\1\x0a\3", {"label 10 of sample 1"}),
       Invalid("images for labels", Images(), {"4 dimensions, labels have 1"})},
      labels_, spec_, ImageGraph(/*classes=*/10));
}

}  // namespace
}  // namespace muster::hostile_arrays_test
