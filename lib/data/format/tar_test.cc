#include "lib/data/format/tar.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/status/status.h"

namespace muster::tar_test {
namespace {

using testing::HasSubstr;

const std::string& Path() {
  static const auto* const path = new std::string(absl::StrCat(testing::TempDir(), "/a.tar"));
  return *path;
}

std::shared_ptr<const DataFile> Open(const std::string& archive) {
  std::ofstream(Path(), std::ios::binary) << archive;
  return DataFile::Open(Path(), "data.tar.path").value();
}

// Returns "NAME=CONTENT" of each member, and the error if there is one.
std::string Members(std::shared_ptr<const DataFile> file) {
  TarReader reader(file, "data.tar.path");
  std::vector<std::string> members;
  while (true) {
    const auto member = reader.Next();
    if (!member.ok()) {
      members.push_back(absl::StrCat(ReasonOf(member.status()), " ", member.status().message()));
      break;
    }
    if (!*member) break;
    std::string bytes((*member)->bytes, '\0');
    EXPECT_TRUE(file->Read((*member)->offset,
                           absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()))
                    .ok());
    members.push_back(absl::StrCat((*member)->name, "=", bytes.substr(0, 20)));
  }
  return absl::StrJoin(members, " ");
}

std::string Members(const std::string& archive) { return Members(Open(archive)); }

std::string Error(absl::string_view reason, absl::string_view message) {
  return absl::StrCat(reason, " data.tar.path: ", Path(), ": ", message);
}

TEST(TarTest, FindsRegularMembersAlone) {
  EXPECT_EQ(
      Members(TarMemberBytes("dir/", "", '5') + TarMemberBytes("dir/a.jpg", "one") +
              TarMemberBytes("b.cls", "") + TarMemberBytes("link", "", '2') +
              TarMemberBytes("c", std::string(513, 'c'), '\0') + TarMemberBytes("old/", "", '\0') +
              TarMemberBytes("../../etc", "d", '7') + TarMemberBytes("tty", "", '3') + TarEnd()),
      absl::StrCat("dir/a.jpg=one b.cls= c=", std::string(20, 'c'), " ../../etc=d"));
}

TEST(TarTest, TheSizeOfALinkIsThatOfItsTarget) {
  std::string link = TarMemberBytes("link", "", '1');
  link.replace(124, 11, "00000001000");
  SetTarChecksum(link);
  EXPECT_EQ(Members(link + TarMemberBytes("a", "1") + TarEnd()), "a=1");
}

TEST(TarTest, ReadsTheNamesOfAllFormats) {
  std::string split = TarMemberBytes("name", "1");
  split.replace(345, 6, "prefix");
  SetTarChecksum(split);
  std::string gnu = split;
  gnu.replace(257, 8, std::string("ustar  \0", 8));
  SetTarChecksum(gnu);
  const std::string longer(300, 'n');
  EXPECT_EQ(Members(split + gnu + TarMemberBytes("././@LongLink", longer + '\0', 'L') +
                    TarMemberBytes("short", "2") + TarMemberBytes("././@LongLink", "target", 'K') +
                    TarMemberBytes("pax_global_header", PaxRecord("comment", "0123"), 'g') +
                    TarMemberBytes("pax", PaxRecord("mtime", "1.5") + PaxRecord("path", "pax name"),
                                   'x') +
                    TarMemberBytes("short", "3") + TarMemberBytes("last", "4") + TarEnd()),
            absl::StrCat("prefix/name=1 name=1 ", longer, "=2 pax name=3 last=4"));
}

TEST(TarTest, ReadsSizesInBytesAndInPaxRecords) {
  std::string large = TarMemberBytes("a", "12345");
  large.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\5", 12));
  SetTarChecksum(large);
  std::string pax = TarMemberBytes("b", "1234567");
  pax.replace(124, 11, "00000000000");
  SetTarChecksum(pax);
  EXPECT_EQ(Members(large + TarMemberBytes("x", PaxRecord("size", "7"), 'x') + pax + TarEnd()),
            "a=12345 b=1234567");
}

TEST(TarTest, MembersOfAnySizeFollowEachOther) {
  std::string archive;
  std::vector<std::string> expected;
  for (const int bytes : {0, 1, 511, 512, 513, 5000, 2, 100'000, 300'000, 3, 4, 5}) {
    for (int i = 0; i < 40; ++i) {
      const std::string name = absl::StrCat(bytes, "_", i);
      archive += TarMemberBytes(name, std::string(bytes, 'a' + i % 26));
      expected.push_back(absl::StrCat(name, "=", std::string(std::min(bytes, 20), 'a' + i % 26)));
    }
  }
  EXPECT_EQ(Members(archive + TarEnd()), absl::StrJoin(expected, " "));
}

TEST(TarTest, ReadsArchivesThatWereJoined) {
  const std::string one = TarMemberBytes("a", "1") + TarEnd();
  EXPECT_EQ(Members(one + std::string(8192, '\0') + one), "a=1 a=1");
  EXPECT_EQ(Members(one + std::string(100, '\0')), "a=1");
  EXPECT_EQ(Members(one + std::string(100, 'x')),
            absl::StrCat("a=1 ", Error("DATA_TRUNCATED",
                                       "ends at byte 2148, after 1 members, without the mark of "
                                       "an archive's end")));
}

TEST(TarTest, AcceptsChecksumsOfSignedBytes) {
  std::string member = TarMemberBytes("\xc3\xa4", "1");
  member.replace(148, 8, 8, ' ');
  int sum = 0;
  for (int i = 0; i < 512; ++i) sum += static_cast<signed char>(member[i]);
  member.replace(148, 8, absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
  EXPECT_EQ(Members(member + TarEnd()), "\xc3\xa4=1");
}

TEST(TarTest, ADamagedHeaderNamesMemberAndOffset) {
  std::string archive = TarMemberBytes("a", "1") + TarMemberBytes("b", "2") + TarEnd();
  archive[1024 + 3] = 'x';
  EXPECT_EQ(Members(archive),
            absl::StrCat("a=1 ", Error("DATA_DAMAGED",
                                       "record 1 at byte 1024: the checksum of the "
                                       "header is wrong")));
  EXPECT_EQ(Members(std::string(600, 'x')),
            Error("DATA_DAMAGED",
                  "record 0 at byte 0: the checksum of the header is wrong; is it a tar file?"));
}

TEST(TarTest, ChecksTheSize) {
  for (const std::string& size : {std::string("0000000000x\0", 12), std::string(12, '\xff'),
                                  std::string(1, '\x80') + std::string(11, '\xff')}) {
    std::string member = TarMemberBytes("a", "");
    member.replace(124, 12, size);
    SetTarChecksum(member);
    EXPECT_THAT(Members(member + TarEnd()), HasSubstr("record 0 at byte 0: the size is no number"));
  }
  for (const std::string& size : {std::string("00000002001\0", 12), std::string("777777777777"),
                                  std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12)}) {
    std::string member = TarMemberBytes("a", "");
    member.replace(124, 12, size);
    SetTarChecksum(member);
    EXPECT_THAT(Members(member + TarEnd()), HasSubstr("but the file ends at byte 1536")) << size;
  }
  EXPECT_THAT(Members(TarMemberBytes("x", PaxRecord("size", "9223372036854775808"), 'x') +
                      TarMemberBytes("a", "") + TarEnd()),
              HasSubstr("the size '9223372036854775808' is no number"));
}

TEST(TarTest, ChecksExtendedHeaders) {
  const auto members = [](const std::string& records) {
    return Members(TarMemberBytes("x", records, 'x') + TarMemberBytes("a", "") + TarEnd());
  };
  for (const char* records :
       {"999 path=a\n", "2 \n", "x", "0 path=a\n", "10 path=a\nb", "-9 a=b\n"}) {
    EXPECT_THAT(members(records), HasSubstr("a pax record has a wrong length")) << records;
  }
  EXPECT_THAT(members("7 path\n"), HasSubstr("a pax record has no '='")) << "no =";
  EXPECT_THAT(members(std::string((1 << 20) + 1, 'x')),
              HasSubstr("of 1048577 bytes; at most 1048576"));
  EXPECT_THAT(Members(TarMemberBytes("x", PaxRecord("path", "a"), 'x') + TarEnd()),
              HasSubstr("an extended header without a member"));
  EXPECT_THAT(Members(TarMemberBytes("g", PaxRecord("size", "1"), 'g') + TarEnd()),
              HasSubstr("a global pax header sets the size"));
}

TEST(TarTest, RefusesSparseAndContinuedMembers) {
  EXPECT_EQ(Members(TarMemberBytes("a", "", 'S') + TarEnd()),
            Error("DATA_INVALID", "member 0 at byte 0 is sparse: pack without --sparse"));
  EXPECT_THAT(Members(TarMemberBytes("x", PaxRecord("GNU.sparse.major", "1"), 'x') +
                      TarMemberBytes("a", "") + TarEnd()),
              HasSubstr("is sparse"));
  EXPECT_THAT(Members(TarMemberBytes("a", "", 'M') + TarEnd()), HasSubstr("continues another"));
}

TEST(TarTest, AnArchiveWithoutItsEndWasCut) {
  const std::string archive = TarMemberBytes("a", "1") + TarMemberBytes("b", std::string(600, 'b'));
  EXPECT_THAT(Members(archive), HasSubstr("after 2 members, without the mark"));
  EXPECT_THAT(Members(archive.substr(0, 2000)),
              HasSubstr("DATA_TRUNCATED data.tar.path: " + Path() +
                        ": member 1 at byte 1024 has 600 bytes, but the file ends at byte 2000"));
  EXPECT_THAT(Members(archive.substr(0, 1200)), HasSubstr("after 1 members, without the mark"));
  EXPECT_THAT(Members(""), HasSubstr("ends at byte 0, after 0 members"));
}

TEST(TarTest, RefusesCompressedArchivesWithTheRemedy) {
  EXPECT_THAT(Members("\x1f\x8b..."),
              AllOf(HasSubstr("DATA_INVALID"), HasSubstr("muster data convert " + Path())));
  EXPECT_THAT(Members("\x28\xb5\x2f\xfd..."), HasSubstr("muster data convert " + Path()));
}

TEST(TarTest, ReadsTheBytesOfTheLastMember) {
  const std::string large(300'000, 'l');
  TarReader reader(Open(TarMemberBytes("a", "12") + TarMemberBytes("b", large) + TarEnd()), "x");
  EXPECT_EQ(reader.ReadBytes(**reader.Next()).value(), "12");
  EXPECT_EQ(reader.ReadBytes(**reader.Next()).value(), large);
}

TEST(TarTest, ReadsWhatTheTarProgramWrites) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/tar_program");
  const std::string script = absl::StrCat("rm -rf ", folder, " && mkdir -p ", folder, "/d && cd ",
                                          folder, " && printf 1 >d/a.cls && printf 2 >d/",
                                          std::string(200, 'n'), " && ln -s a.cls d/link");
  ASSERT_EQ(std::system(script.c_str()), 0);
  for (const char* format : {"ustar", "gnu", "pax"}) {
    const bool fits = std::string(format) != "ustar";
    const std::string pack = absl::StrCat("tar -C ", folder, " --sort=name --format=", format,
                                          fits ? "" : " --exclude='nnn*'", " -cf ", Path(), " d");
    ASSERT_EQ(std::system(pack.c_str()), 0);
    EXPECT_EQ(Members(DataFile::Open(Path(), "data.tar.path").value()),
              absl::StrCat("d/a.cls=1", fits ? " d/" + std::string(200, 'n') + "=2" : ""))
        << format;
  }
}

}  // namespace
}  // namespace muster::tar_test
