// Checks in the ELF files that our programs have the hardening requested from compiler and linker.
#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"

namespace muster::hardening_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// FORTIFY replaces some functions of the C library by checked ones (__memcpy_chk). Each program
// must import at least this many of them.
constexpr int kFortifiedMin = 3;

// The only folder besides the system's in which a program may search for libraries. It is the
// toolkit of the build, whose cuBLAS is loaded if there is a GPU (bazel/cuda.BUILD).
#if defined(MUSTER_CUDA_LIBRARIES)
constexpr absl::string_view kCudaLibraries = MUSTER_CUDA_LIBRARIES;
#else
constexpr absl::string_view kCudaLibraries;
#endif

std::string ReadProgram(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_FALSE(bytes.empty()) << path;
  return bytes;
}

// An array in the file, checked against the end of the file. Our linker made the file, but a test
// that reads past its buffer proves nothing.
template <typename T>
std::vector<T> ReadArray(const std::string& elf, uint64_t offset, uint64_t bytes) {
  std::vector<T> items(bytes / sizeof(T));
  if (offset > elf.size() || bytes > elf.size() - offset) {
    ADD_FAILURE() << "the file ends before byte " << offset + bytes;
    return {};
  }
  std::memcpy(items.data(), elf.data() + offset, items.size() * sizeof(T));
  return items;
}

Elf64_Ehdr HeaderOf(const std::string& elf) {
  const auto headers = ReadArray<Elf64_Ehdr>(elf, 0, sizeof(Elf64_Ehdr));
  if (!headers.empty() && std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) == 0) return headers[0];
  ADD_FAILURE() << "no ELF file";
  return {};
}

std::vector<Elf64_Phdr> SegmentsOf(const std::string& elf) {
  const Elf64_Ehdr header = HeaderOf(elf);
  return ReadArray<Elf64_Phdr>(elf, header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr));
}

std::vector<Elf64_Dyn> DynamicOf(const std::string& elf) {
  for (const Elf64_Phdr& segment : SegmentsOf(elf)) {
    if (segment.p_type == PT_DYNAMIC) {
      return ReadArray<Elf64_Dyn>(elf, segment.p_offset, segment.p_filesz);
    }
  }
  return {};
}

// Returns the names of functions and variables that the program imports from shared libraries.
std::vector<std::string> ImportsOf(const std::string& elf) {
  std::vector<std::string> names;
  const Elf64_Ehdr header = HeaderOf(elf);
  const auto sections =
      ReadArray<Elf64_Shdr>(elf, header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM) continue;
    const Elf64_Shdr& strings = sections.at(section.sh_link);
    const auto text = ReadArray<char>(elf, strings.sh_offset, strings.sh_size);
    for (const auto& symbol : ReadArray<Elf64_Sym>(elf, section.sh_offset, section.sh_size)) {
      if (symbol.st_shndx == SHN_UNDEF) names.emplace_back(&text.at(symbol.st_name));
    }
  }
  return names;
}

std::vector<std::string> FaultsOfSegments(const std::string& elf) {
  std::vector<std::string> faults;
  bool stack = false, relro = false;
  for (const Elf64_Phdr& segment : SegmentsOf(elf)) {
    const bool writable = (segment.p_flags & PF_W) != 0, executable = (segment.p_flags & PF_X) != 0;
    stack |= segment.p_type == PT_GNU_STACK && !executable;
    relro |= segment.p_type == PT_GNU_RELRO;
    if (segment.p_type == PT_LOAD && writable && executable) {
      faults.push_back("a segment can be written and executed");
    }
  }
  if (!stack) faults.push_back("the stack can be executed");
  if (!relro) faults.push_back("what is relocated stays writable (no PT_GNU_RELRO)");
  return faults;
}

// Returns the folders that the loader searches for libraries before the system's folders.
std::string LibraryPathOf(const std::string& elf) {
  const Elf64_Ehdr header = HeaderOf(elf);
  for (const auto& section :
       ReadArray<Elf64_Shdr>(elf, header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr))) {
    if (section.sh_type != SHT_DYNAMIC) continue;
    const Elf64_Shdr& strings =
        ReadArray<Elf64_Shdr>(elf, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr),
                              sizeof(Elf64_Shdr))
            .at(0);
    const auto text = ReadArray<char>(elf, strings.sh_offset, strings.sh_size);
    for (const Elf64_Dyn& entry : DynamicOf(elf)) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) return &text.at(entry.d_un.d_val);
    }
  }
  return "";
}

std::vector<std::string> FaultsOfLinking(const std::string& elf) {
  std::vector<std::string> faults;
  bool pie = false, now = false;
  for (const Elf64_Dyn& entry : DynamicOf(elf)) {
    if (entry.d_tag == DT_NULL) break;
    pie |= entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0;
    now |= entry.d_tag == DT_BIND_NOW ||
           (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_BIND_NOW) != 0) ||
           (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_NOW) != 0);
  }
  // With a path of the build or a relative path, any user with write access there runs code as the
  // member.
  if (const std::string path = LibraryPathOf(elf); !path.empty() && path != kCudaLibraries) {
    faults.push_back(absl::StrCat("libraries are looked for in ", path, " (RPATH or RUNPATH)"));
  }
  if (HeaderOf(elf).e_type != ET_DYN || !pie) faults.push_back("it is no PIE");
  if (!now) faults.push_back("functions are bound late, so the GOT stays writable");
  return faults;
}

std::vector<std::string> FaultsOfCode(const std::string& elf) {
  std::vector<std::string> faults;
  const std::vector<std::string> imports = ImportsOf(elf);
  std::vector<std::string> fortified;
  for (const std::string& name : imports) {
    if (absl::StartsWith(name, "__") && absl::EndsWith(name, "_chk")) fortified.push_back(name);
  }
  if (std::ranges::find(imports, "__stack_chk_fail") == imports.end()) {
    faults.push_back("no canaries");
  }
  if (static_cast<int>(fortified.size()) < kFortifiedMin) {
    faults.push_back(absl::StrCat("few fortified calls: ", absl::StrJoin(fortified, " ")));
  }
  return faults;
}

std::vector<std::string> FaultsOf(const std::string& elf) {
  std::vector<std::string> faults = FaultsOfSegments(elf);
  for (const auto& more : {FaultsOfLinking(elf), FaultsOfCode(elf)}) {
    faults.insert(faults.end(), more.begin(), more.end());
  }
  return faults;
}

class HardeningTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    GTEST_SKIP() << "sanitizers and builds that are not optimised do without FORTIFY";
#endif
  }
};

TEST_F(HardeningTest, TheProgramsAreHardened) {
  for (const char* program :
       {"services/coordinator/main", "services/ps/main", "services/worker/main", "cli/muster"}) {
    EXPECT_THAT(FaultsOf(ReadProgram(program)), IsEmpty()) << program;
  }
}

TEST_F(HardeningTest, AProgramThatWasBuiltWithoutIsNot) {
  EXPECT_THAT(FaultsOf(ReadProgram("tests/unhardened")),
              ElementsAre(HasSubstr("stack can be executed"), HasSubstr("PT_GNU_RELRO"),
                          HasSubstr("/nowhere (RPATH or RUNPATH)"), HasSubstr("no PIE"),
                          HasSubstr("bound late"), HasSubstr("no canaries"),
                          HasSubstr("few fortified calls: ")));
}

// A linker warns of a segment that is writable and executable, so the test does not build one. It
// sets the flags in the headers of a copy, which is all that the check reads.
TEST_F(HardeningTest, ASegmentThatCanBeWrittenAndExecutedIsFound) {
  std::string elf = ReadProgram("services/ps/main");
  std::vector<Elf64_Phdr> segments = SegmentsOf(elf);
  for (Elf64_Phdr& segment : segments) segment.p_flags |= PF_R | PF_W | PF_X;
  std::memcpy(elf.data() + HeaderOf(elf).e_phoff, segments.data(),
              segments.size() * sizeof(Elf64_Phdr));
  EXPECT_THAT(FaultsOf(elf), Contains(HasSubstr("written and executed")));
}

}  // namespace
}  // namespace muster::hardening_test
