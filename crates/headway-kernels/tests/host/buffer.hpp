// A file's bytes in memory of exactly their size, aligned as on a GPU.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

struct Buffer {
    std::string path;
    size_t size;
    unsigned char* bytes;

    explicit Buffer(const std::string& file)
        : path(file)
    {
        std::ifstream in(file, std::ios::binary);
        const std::vector<char> content { std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>() };
        size = content.size();
        void* memory = nullptr;
        if (!in.good() && !in.eof()) {
            std::perror(file.c_str());
            std::exit(2);
        }
        if (posix_memalign(&memory, 256, size) != 0) {
            std::exit(2);
        }
        bytes = static_cast<unsigned char*>(memory);
        std::copy(content.begin(), content.end(), bytes);
    }
    ~Buffer() { std::free(bytes); }
    Buffer(const Buffer&) = delete;

    void save() const
    {
        std::ofstream out(path, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    }
};
