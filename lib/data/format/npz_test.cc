#include "lib/data/format/npz.h"

#include <zlib.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/format/zip_writer.h"
#include "lib/status/status.h"

namespace muster::npz_test {
namespace {

struct Member {
  std::string name, content;
};

uint32_t Crc(const std::string& text) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
}

std::string Zip(const std::vector<Member>& members) {
  ZipWriter writer;
  std::string zip;
  for (const Member& member : members) {
    absl::StrAppend(&zip, writer.Next(member.name, Crc(member.content), member.content.size()),
                    member.content);
  }
  return zip + writer.End();
}

// An .npy file with u8[count].
std::string Npy(int count) {
  std::string header =
      absl::StrCat("{'descr': '|u1', 'fortran_order': False, 'shape': (", count, ",), }");
  header.resize(117, ' ');
  header.push_back('\n');
  std::string npy = absl::StrCat("\x93NUMPY", std::string("\x01\0\x76\0", 4), header);
  for (int i = 0; i < count; ++i) npy.push_back(static_cast<char>(i));
  return npy;
}

absl::StatusOr<NpzFile> Open(const std::string& content) {
  const std::string path = absl::StrCat(testing::TempDir(), "/x.npz");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return NpzFile::Open(path, "data.npz.path");
}

// Opens the archive and finds the array. Returns the message of the first error, without the path.
std::string FaultOf(const std::string& content, const std::string& name = "a") {
  const auto file = Open(content);
  const absl::Status status =
      file.ok() ? file->Find(name, "data.npz.path").status() : file.status();
  std::string message(status.message());
  const std::string begin = absl::StrCat("data.npz.path: ", testing::TempDir(), "/x.npz: ");
  EXPECT_TRUE(status.ok() || absl::StartsWith(message, begin)) << message;
  return status.ok() ? "" : message.substr(begin.size());
}

std::string Patched(std::string text, size_t at, const std::string& by) {
  return text.replace(at, by.size(), by);
}

// Returns the offset of the directory's entry of the last member.
size_t LastEntry(const std::string& zip) { return zip.rfind("PK\x01\x02"); }

TEST(NpzTest, FindsArraysByName) {
  const auto file = Open(Zip({{"a.npy", Npy(3)}, {"b/c.npy", Npy(200)}, {"notes", "no array"}}));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto array = file->Find("b/c", "data.npz.inputs.x");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->header.type, NpyType::kU8);
  EXPECT_EQ(array->header.shape, (std::vector<int64_t>{200}));
  std::vector<std::byte> bytes(200);
  ASSERT_TRUE(file->file()->Read(array->header.data_offset, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes[199], std::byte{199});
  EXPECT_EQ(file->Find("d", "data.npz.inputs.x").status().message(),
            absl::StrCat("data.npz.inputs.x: ", testing::TempDir(),
                         "/x.npz: has no array 'd'; it has 'a', 'b/c'"));
}

// Made by numpy 1.24: savez_compressed("x.npz", a=uint8([1, 2, 3])), and savez() to a pipe, which
// gives a data descriptor.
constexpr char kCompressed[] =
    "504b0304140000000800000021002ae38eb1470000008300000005001400612e6e707901001000830000000000"
    "000047000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a05e536aa8aea3a09e965f54529498"
    "179f5f94920a12774bcc294e058a17672416a402f91ac63a9a3a0ab50a14002e46266600504b01021403140000"
    "000800000021002ae38eb14700000083000000050000000000000000000000800100000000612e6e7079504b05"
    "060000000001000100330000007e0000000000";
constexpr char kStreamed[] =
    "504b03041400080000000000210000000000000000000000000005001400612e6e707901001000000000000000"
    "00000000000000000000934e554d5059010076007b276465736372273a20277c7531272c2027666f727472616e"
    "5f6f72646572273a2046616c73652c20277368617065273a2028332c292c207d20202020202020202020202020"
    "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
    "20200a010203504b07082ae38eb183000000000000008300000000000000504b01021403140008000000000021"
    "002ae38eb18300000083000000050000000000000000000000800100000000612e6e7079504b05060000000001"
    "00010033000000d20000000000";
constexpr char kSaved[] =
    "504b0304140000000000000021002ae38eb1830000008300000005001400612e6e707901001000830000000000"
    "00008300000000000000934e554d5059010076007b276465736372273a20277c7531272c2027666f727472616e"
    "5f6f72646572273a2046616c73652c20277368617065273a2028332c292c207d20202020202020202020202020"
    "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
    "20200a010203504b01021403140000000000000021002ae38eb183000000830000000500000000000000000000"
    "00800100000000612e6e7079504b0506000000000100010033000000ba0000000000";

TEST(NpzTest, ReadsWhatNumpyWrites) {
  for (const char* hex : {kSaved, kStreamed}) {
    const auto file = Open(absl::HexStringToBytes(hex));
    ASSERT_TRUE(file.ok()) << file.status();
    const auto array = file->Find("a", "data");
    ASSERT_TRUE(array.ok()) << array.status();
    std::byte bytes[3];
    ASSERT_TRUE(file->file()->Read(array->header.data_offset, bytes).ok());
    EXPECT_EQ(bytes[2], std::byte{3});
  }
  EXPECT_EQ(FaultOf(absl::HexStringToBytes(kCompressed)),
            absl::StrCat("array 'a' is compressed, so it has no random access; run: muster data "
                         "convert ",
                         testing::TempDir(), "/x.npz ", testing::TempDir(), "/x.stored.npz"));
}

TEST(NpzTest, RefusesHostileArchives) {
  const std::string good = Zip({{"a.npy", Npy(3)}, {"b.npy", Npy(9)}});
  ASSERT_EQ(FaultOf(good), "");
  ASSERT_EQ(FaultOf(good, "b"), "");
  const size_t entry = LastEntry(good), end = good.size() - 22, end64 = end - 76;
  const std::string eight(8, '\xff');
  struct Case {
    std::string zip, message;
  };
  for (const Case& c : std::vector<Case>{
           {"no zip", "lacks the directory at its end"},
           {good.substr(0, good.size() - 1), "lacks the directory at its end"},
           {good + "x", "lacks the directory at its end"},
           {"x" + good, "lacks its zip64 record"},
           {Patched(good, end - 12, eight), "lacks its zip64 record"},
           {Patched(good, end64 + 48, eight), "the directory of the archive is not where"},
           {Patched(good, end64 + 32, eight), "18446744073709551615 members in a directory"},
           {Patched(good, end64 + 32, std::string("\3\0\0\0\0\0\0\0", 8)),
            "the directory of the archive cannot be read"},
           {Patched(good, end64 + 32, std::string("\1\0\0\0\0\0\0\0", 8)),
            "bytes follow the last member"},
           {Patched(good, entry + 28, "\xff\xff"), "the directory of the archive cannot be read"},
           {Patched(good, entry + 46 + 5, "\x02"), "member 'b.npy' lacks its zip64 numbers"},
           {Patched(good, entry + 46 + 5 + 4 + 8, eight), "member 'b.npy' is outside the file"},
           {Patched(good, entry + 46 + 5 + 4 + 16, std::string(8, '\0')), "overlaps"},
           {Patched(good, entry + 46, "a"), "two members with the name 'a.npy'"},
       }) {
    EXPECT_TRUE(absl::StartsWith(FaultOf(c.zip, "b"), c.message) ||
                absl::StrContains(FaultOf(c.zip, "b"), c.message))
        << FaultOf(c.zip, "b") << "; expected " << c.message;
  }
  EXPECT_EQ(FaultOf(Patched(good, entry + 8, "\x01"), "b"), "member 'b.npy': is encrypted");
  EXPECT_EQ(FaultOf(Patched(good, entry + 46 + 5 + 4, "\x01"), "b"),
            "array 'b': 137 bytes in the archive for 1");
  const std::string differs = "member 'a.npy': its header differs from the directory";
  EXPECT_EQ(FaultOf(Patched(good, 0, "x")), differs);
  EXPECT_EQ(FaultOf(Patched(good, 30, "x")), differs);
  EXPECT_EQ(FaultOf(Patched(good, 28, "\xff")),
            "member 'a.npy': overlaps what follows it in the archive");
  const size_t content = good.find("\x93NUMPY");
  EXPECT_EQ(FaultOf(Patched(good, content + 129, "x")),
            absl::StrCat("array 'a': at byte ", content, ": the CRC differs"));
}

TEST(NpzTest, ReadsOrRefusesAnyBytes) {
  std::mt19937 random(20261129);
  const std::string good = Zip({{"a.npy", Npy(3)}, {"b.npy", Npy(9)}});
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto file = Open(bytes);
    if (!file.ok()) continue;
    const auto array = file->Find("a", "data");
    if (!array.ok()) continue;
    ASSERT_LE(array->header.data_offset + array->header.data_bytes, bytes.size());
  }
}

}  // namespace
}  // namespace muster::npz_test
