#include "lib/data/convert/convert.h"

#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/zip_writer.h"
#include "lib/status/status.h"

namespace muster::convert_test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

std::string Gzip(const std::string& text, int window = 15 + 16) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// Text that takes several reads and writes.
std::string LongText() {
  std::string text;
  for (int i = 0; text.size() < 2'000'000; ++i) absl::StrAppend(&text, i * 2654435761u, ",");
  return text;
}

class ConvertTest : public testing::Test {
 protected:
  ConvertTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }

  std::string At(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& content) {
    fs::create_directories(fs::path(At(name)).parent_path());
    std::ofstream(At(name), std::ios::binary | std::ios::trunc) << content;
  }
  std::string Read(const std::string& name) {
    std::ifstream file(At(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  absl::StatusOr<Converted> Run(const std::string& in, const std::string& out,
                                const ConvertOptions& options = {}) {
    return Convert(At(in), At(out), options);
  }
  std::string Fault(const std::string& in) {
    return std::string(Run(in, "out").status().message());
  }

  std::string folder_;
};

TEST_F(ConvertTest, DecompressesGzipAndZstd) {
  const std::string text = LongText();
  Write("a.gz", Gzip(text) + Gzip("") + Gzip("second member"));
  Write("b.zst", Zstd(text) + Zstd("second frame"));
  const auto gzip = Run("a.gz", "a");
  ASSERT_TRUE(gzip.ok()) << gzip.status();
  EXPECT_EQ(gzip->bytes_written, text.size() + 13);
  EXPECT_EQ(gzip->bytes_read, fs::file_size(At("a.gz")));
  EXPECT_TRUE(Read("a") == text + "second member");
  ASSERT_TRUE(Run("b.zst", "b").ok());
  EXPECT_TRUE(Read("b") == text + "second frame");
}

TEST_F(ConvertTest, AStreamMayEndWithAFullBuffer) {
  const std::string text(1 << 20, 'a');  // four buffers of output, and one of input
  Write("a.gz", Gzip(text));
  Write("b.zst", Zstd(text));
  for (const char* name : {"a", "b"}) {
    const auto converted = Run(absl::StrCat(name, *name == 'a' ? ".gz" : ".zst"), name);
    ASSERT_TRUE(converted.ok()) << converted.status();
    EXPECT_TRUE(Read(name) == text) << name;
  }
}

TEST_F(ConvertTest, KeepsNothingOfADamagedFile) {
  std::string gzip = Gzip(LongText()), zstd = Zstd(LongText());
  Write("cut.gz", gzip.substr(0, gzip.size() - 1));
  EXPECT_THAT(Fault("cut.gz"), HasSubstr("cut.gz: the deflated stream ends early"));
  Write("cut.zst", zstd.substr(0, zstd.size() - 1));
  EXPECT_THAT(Fault("cut.zst"), HasSubstr("cut.zst: the zstd stream ends early"));
  gzip[gzip.size() - 8] ^= 1;
  Write("bad.gz", gzip);
  EXPECT_THAT(Fault("bad.gz"), HasSubstr("incorrect data check"));
  Write("bad.zst", zstd.substr(0, 1000) + std::string(400'000, '\xff'));
  EXPECT_THAT(Fault("bad.zst"), HasSubstr("bad.zst: at byte "));
  Write("trailing.gz", Gzip("text") + "no gzip");
  EXPECT_THAT(Fault("trailing.gz"), HasSubstr("incorrect header check"));
  EXPECT_FALSE(fs::exists(At("out")));
  EXPECT_FALSE(fs::exists(At("out.part")));
}

TEST_F(ConvertTest, ReplacesAFileOnlyIfForced) {
  Write("a.gz", Gzip("new"));
  Write("a", "old");
  const auto refused = Run("a.gz", "a");
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  EXPECT_EQ(Read("a"), "old");
  ASSERT_TRUE(Run("a.gz", "a", {.overwrite = Overwrite::kReplace}).ok());
  EXPECT_EQ(Read("a"), "new");
  fs::create_directory(At("folder"));
  const auto folder = Run("a.gz", "folder", {.overwrite = Overwrite::kReplace});
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("is a folder; give the path of a"));
  const auto nowhere = Run("a.gz", "nowhere/a");
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("make its folder first"));
}

TEST_F(ConvertTest, NamesTheRemedyForOtherFiles) {
  Write("a.csv", "1,2\n");
  EXPECT_THAT(Fault("a.csv"), AllOf(HasSubstr("a.csv: is not compressed"), HasSubstr("inspect")));
  Write("a.xz", std::string("\xfd\x37zXZ\0 and", 10));
  EXPECT_THAT(Fault("a.xz"), HasSubstr("run: xz -dk "));
  EXPECT_EQ(ReasonOf(Run("missing", "out").status()), "DATA_NOT_FOUND");
}

// Made by numpy 1.24: savez_compressed("x.npz", a=arange(1000, dtype="<i4"), b=uint8([1, 2, 3])).
constexpr char kCompressed[] =
    "504b030414000000080000002100b927f54ce10500002010000005001400612e6e707901001000201000000000"
    "0000e1050000000000009dd66397100a1300e06cdb6ddcb0d566dbb6b9d566ee66dbb66ddbb66dbbcbba66ddde"
    "a7bff0ce39cf8799335f07b36b35ac59a769c408fd220c0e6c1f1ade2e2cb058406089ce05028302023bf40ceb"
    "1316d2a375cfb0f6a15feb9542ba8587aa87770ae9152acf9637383838287b50c0d080ff3762451011894464a2"
    "10956844270631f9da189b38c4251ef149404212919824242519c949414a52919a34a4251de909200319c94466"
    "b2909540b2919d1ce424885ce4260fc1e4251ff92940410a51982214a518c52941494a519a3294a51ce5a94045"
    "2a51992a54a51ad5a9414d6a519b3ad4a51ef56940431ad1982634a519cd69414b5ad19a3684d09676b427940e"
    "74a4139de94257bad19d1ef4a417bd09239c3ef4a51ffd19c040063198210c6518c319c14846319a318c651ce3"
    "99c044263199294c651ad399c14c66319b39cc651ef359c04216b198252c6519cb59c14a56b19a35ac651debd9"
    "c04636b1992d6c651bdbd9c14e76b19b3dec651ffb39c0410e7198231ce518c739c1494e719a339ce51ce7b9c0"
    "452e71992b5ce51ad7b9c14d6e719b3bdce51ef779c0431ef198273ce519cf79c14b5ef19a37bce51deff9866f"
    "f98eeff9811ff9c0477ee2677ee1577ee377fee04ffee26ffee15f3ef199fff8c2d7e18f4824221385a844233a"
    "3188492c621387b8c4233e09484822129384a42423392948492a529386b4a4233d0164202399c84c16b2124836"
    "b293839c04918bdce42198bce4233f052848210a5384a214a338252849294a5386b294a33c15a848252a5385aa"
    "54a33a35a8492d6a5387bad4a33e0d6848231ad304eb3d42339ad38296b4a2356d08a12ded684f281de848273a"
    "d385ae74a33b3de8492f7a1346387de84b3ffa3380810c62304318ca30863382918c62346318cb38c63381894c"
    "62325398ca34a6338399cc62367398cb3ce6b380852c62314b58ca3296b38295ac62356b58cb3ad6b3818d6c62"
    "335bd8ca36b6b3839dec62377bd8cb3ef67380831ce2304738ca318e7382939ce2346738cb39ce73818b5ce232"
    "57b8ca35ae73839bdce23677b8cb3deef380873ce2314f78ca339ef38297bce2356f78cb3bdef30ddff21ddff3"
    "033ff2818ffcc4cffcc2affcc6effcc19ffcc5dffcc3bf7ce233fff185af873f2291884c14a2128de8c42026b1"
    "884d1ce2128ff824202189484c1292928ce4a42025a9484d1ad2928ef40490818c64223359c84a20d9c84e0e72"
    "12442e72938760f2928ffc14a02085284c118a528ce294a024a5284d19ca528ef254a02295a84c15aa528dead4"
    "a026b5a84d1dea528ffa34a0218d684c139ad28ce6b4a025ad684d1b42684b3bda134a073ad289ce74a12bdde8"
    "4e0f7ad28bde84114e1ffad28ffe0c60208318cc1086328ce18c6024a318cd18c6328ef14c60229398cc14a632"
    "8de9cc6026b398cd1ce6328ff92c60218b58cc1296b28ce5ac6025ab58cd1ad6b28ef56c60239bd8cc16b6b28d"
    "edec6027bbd8cd1ef6b28ffd1ce0208738cc118e728ce39ce024a738cd19ce728ef35ce02297b8cc15ae728deb"
    "dce026b7b8cd1dee728ffb3ce0218f78cc139ef28ce7bce025af78cd1bdef28ef77cc3b77cc7f7fcc08f7ce023"
    "3ff133bff02bbff13b7ff0277ff137fff02f9ff8cc7f7ce1ebd31f914844260a5189467462109358c4260e7189"
    "477c129090442426094949467252909254a4260d6949477a02c840463291992c6425906c64270739092217b9c9"
    "433079c9477e0a50904214a608452946714a50925294a60c652947792a50914a54a60a55a946756a50935ad4a6"
    "0e75a9477d1ad0904634a6094d6946735ad09256b4a60d21b4a51ded09a5031de94467bad0956e74a7073de945"
    "6fc208a70f7de9477f063090410c66084319c670463092518c660c6319c778263091494c660a5399c674663093"
    "59cc660e7399c77c16b090452c66094b59c67256b09255ac660d6b59c77a36b0914d6c660b5bd9c67676b0935d"
    "ec660f7bd9c77e0e7090431ce6084739c6714e7092539ce60c6739c7792e70914b5ce60a57b9c6756e70935bdc"
    "e60e77b9c77d1ef090473ce6094f79c6735ef09257bce60d6f79c77bfe07504b0304140000000800000021002a"
    "e38eb1470000008300000005001400622e6e707901001000830000000000000047000000000000009bec17ea1b"
    "10c9c850c650ad9e925a9c5ca46ea5a05e536aa8aea3a09e965f54529498179f5f94920a12774bcc294e058a17"
    "672416a402f91ac63a9a3a0ab50a14002e46266600504b0102140314000000080000002100b927f54ce1050000"
    "20100000050000000000000000000000800100000000612e6e7079504b01021403140000000800000021002ae3"
    "8eb14700000083000000050000000000000000000000800118060000622e6e7079504b05060000000002000200"
    "66000000960600000000";

TEST_F(ConvertTest, StoresTheArraysOfAnNpzFile) {
  const std::string npz = absl::HexStringToBytes(kCompressed);
  Write("x.npz", npz);
  ASSERT_TRUE(Run("x.npz", "y.npz").ok());
  const auto file = NpzFile::Open(At("y.npz"), "data");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto array = file->Find("a", "data");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->header.shape, (std::vector<int64_t>{1000}));
  int32_t last = 0;
  auto* to = reinterpret_cast<std::byte*>(&last);
  ASSERT_TRUE(file->file()->Read(array->header.data_offset + 4 * 999, {to, 4}).ok());
  EXPECT_EQ(last, 999);
  EXPECT_TRUE(file->Find("b", "data").ok());
  // A changed CRC in the directory.
  std::string damaged = npz;
  damaged[damaged.find("PK\x01\x02") + 16] ^= 1;
  Write("x.npz", damaged);
  EXPECT_THAT(Fault("x.npz"), HasSubstr("the CRC differs"));
  ZipWriter photos;
  const std::string head = photos.Next("a.png", /*crc=*/0, /*bytes=*/0);
  Write("photos.zip", head + photos.End());
  EXPECT_THAT(Fault("photos.zip"), HasSubstr("photos.zip: the member a.png is no .npy file"));
}

TEST_F(ConvertTest, ConvertsEachFileOfAFolder) {
  Write("in/a.csv.gz", Gzip("a"));
  Write("in/deep/b.csv.zst", Zstd("b"));
  Write("in/c.tgz", Gzip("c"));
  Write("in/readme", "text");
  const auto converted = Run("in", "out");
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->files, 3);
  EXPECT_EQ(converted->files_left_out, 1);
  EXPECT_EQ(converted->kind, "converted");
  EXPECT_EQ(Read("out/a.csv"), "a");
  EXPECT_EQ(Read("out/deep/b.csv"), "b");
  EXPECT_EQ(Read("out/c.tar"), "c");
  Write("plain/readme", "text");
  EXPECT_THAT(Fault("plain"), AllOf(HasSubstr("plain: has no gzip, zstd or .npz file; its first "
                                              "file is readme"),
                                    HasSubstr("give each class a folder")));
}

std::string Npy(std::vector<int64_t> shape, const std::string& bytes) {
  return MakeNpyHeader(NpyType::kU8, shape) + bytes;
}

TEST_F(ConvertTest, NoFileReplacesAnotherOne) {
  Write("in/a.csv.gz", Gzip("1,2"));
  Write("in/a.csv.zst", Zstd("3,4"));
  EXPECT_THAT(Fault("in"), HasSubstr("in/a.csv.zst: another file of the folder also becomes "));
  Write("twice/a.zst.gz", Gzip(Zstd("5,6")));
  ASSERT_TRUE(Run("twice", "once").ok());
  EXPECT_TRUE(Read("once/a.zst") == Zstd("5,6"));
}

TEST_F(ConvertTest, StacksArraysOfSamples) {
  Write("in/b.npy", Npy({2, 2}, "5678"));
  Write("in/a.npy", Npy({2, 2}, "1234"));
  ASSERT_TRUE(Run("in", "all.npy").ok());
  EXPECT_TRUE(Read("all.npy") == Npy({2, 2, 2}, "12345678"));
  EXPECT_EQ(Npy({2, 2, 2}, "").size() % 64, 0);
  Write("in/c.npy", Npy({4}, "1234"));
  EXPECT_THAT(Fault("in"), HasSubstr("c.npy: u8[4], but a.npy is u8[2, 2]; all samples need one "
                                     "type and shape"));
  EXPECT_FALSE(fs::exists(At("out")));
  Write("labels/0.npy", Npy({}, "7"));
  ASSERT_TRUE(Run("labels", "labels.npy").ok());
  EXPECT_TRUE(Read("labels.npy") == Npy({1}, "7"));
}

// The first bytes of images, which name their format.
const std::string kJpeg = "\xff\xd8\xff", kPng = "\x89PNG\r\n\x1a\n";

TEST_F(ConvertTest, MakesShardsOfFoldersOfImages) {
  for (int i = 0; i < 20; ++i) {
    Write(absl::StrCat("in/dog/", i, ".JPEG"), absl::StrCat(kJpeg, "dog ", i));
    Write(absl::StrCat("in/cat/", i), absl::StrCat(kPng, "cat ", i));
  }
  Write("in/readme", "text");
  const auto converted = Run("in", "out", {.shard_bytes = 30'000});
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->files, 40);
  EXPECT_EQ(converted->files_written, 4) << "three shards of 2,048 bytes a sample, and the classes";
  EXPECT_EQ(Read("out/classes.txt"), "cat\ndog\n");
  // GNU tar is the judge of the format.
  const std::string command =
      absl::StrCat("cd ", At("out"),
                   " && mkdir all && for s in shard-*.tar; do tar xf $s -C all || exit 1; done");
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::map<std::string, int> samples;
  for (int i = 0; i < 40; ++i) {
    const std::string key = absl::StrCat("out/all/", absl::StrFormat("%09d", i));
    const std::string jpg = Read(key + ".jpg"), png = Read(key + ".png"), cls = Read(key + ".cls");
    EXPECT_EQ(jpg.empty() ? "0" : "1", cls);
    ++samples[jpg + png];
  }
  EXPECT_EQ(samples.size(), 40) << "each image once";
}

TEST_F(ConvertTest, RefusesWhatIsNoImageInAFolderOfAClass) {
  Write("in/cat/1.jpg", kJpeg);
  Write("in/dog/1.jpg", kJpeg);
  Write("in/dog/list.jpg", "text");
  Write("in/dog/old.jpg", "GIF89a");
  EXPECT_THAT(Fault("in"), AllOf(HasSubstr("in/dog/list.jpg: the image is not a JPEG, PNG or WebP"),
                                 HasSubstr("in all, 2 files"), HasSubstr("move or remove")));
  fs::remove(At("in/dog/list.jpg"));
  EXPECT_THAT(Fault("in"), HasSubstr("in/dog/old.jpg: the image is a GIF file"));
  fs::remove(At("in/dog/old.jpg"));
  Write("in/0.jpg", kJpeg);
  EXPECT_THAT(Fault("in"), HasSubstr("in/0.jpg: the image lies in no folder of a class"));
  fs::remove(At("in/0.jpg"));
  fs::create_directory(At("in/bird"));
  EXPECT_THAT(Fault("in"), HasSubstr("in/bird: the folder of a class has no file"));
  EXPECT_FALSE(fs::exists(At("out")));
  fs::remove(At("in/bird"));
  EXPECT_EQ(Fault("in"), "");
}

TEST_F(ConvertTest, RefusesToWriteIntoTheFolderThatItReads) {
  Write("in/cat/1.jpg", kJpeg);
  for (const char* out : {"in", "in/", "in/shards", "in/cat/../shards", "out/../in"}) {
    const absl::Status refused = Run("in", out).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << out;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("write to another folder")) << out;
  }
  EXPECT_FALSE(fs::exists(At("in/classes.txt")));
  EXPECT_TRUE(Run("in", "in2").ok());
}

TEST_F(ConvertTest, ReplacesAllShardsOrNone) {
  const ConvertOptions small = {.shard_bytes = 1};
  ConvertOptions force = small;
  force.overwrite = Overwrite::kReplace;
  for (int i = 0; i < 4; ++i) Write(absl::StrCat("in/cat/", i), kPng);
  ASSERT_TRUE(Run("in", "out", small).ok());
  const std::vector<std::string> others = {"out/shard-000004.tar.bak", "out/shard-4.tar",
                                           "out/shard-0000004.tar", "out/my-shard-000004.tar"};
  for (const std::string& name : others) Write(name, "not ours");
  fs::remove(At("in/cat/3"));

  fs::remove(At("out/shard-000000.tar"));
  const auto refused = Run("in", "out", small);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  EXPECT_FALSE(fs::exists(At("out/shard-000000.tar"))) << "would mix with the earlier shards";

  ASSERT_TRUE(Run("in", "out", force).ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(fs::exists(At(absl::StrCat("out/shard-00000", i, ".tar"))), i < 3) << i;
  }
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(At(name))) << name;
}

}  // namespace
}  // namespace muster::convert_test
