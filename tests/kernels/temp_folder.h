// TempFolder: a folder for a test's files, removed with the object.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace otr {

class TempFolder {
 public:
  TempFolder() {
    std::string name = testing::TempDir() + "outrider_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  std::string write(const std::string& name, std::string_view contents) const {
    std::ofstream(*this / name, std::ios::binary | std::ios::trunc) << contents;
    return *this / name;
  }

 private:
  std::string path_;
};

}  // namespace otr
