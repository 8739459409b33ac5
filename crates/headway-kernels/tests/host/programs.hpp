// Runs launches of programs: FOLDER has a file for each region, and `launches`, with a line each: name, blocks, threads, then
// arguments, `@region` or a number.
#pragma once

#include "buffer.hpp"

#include <cassert>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

// One argument, as whatever its kernel takes.
struct Argument {
    Buffer* region;
    int number;

    template <typename T>
    operator T*() const
    {
        assert(region != nullptr);
        return reinterpret_cast<T*>(region->bytes);
    }
    operator int() const
    {
        assert(region == nullptr);
        return number;
    }
};

using Arguments = std::vector<Argument>;
using Program = std::function<void(unsigned blocks, unsigned threads, const Arguments&)>;

template <typename... Types, size_t... At>
void call(void (*kernel)(Types...), const Arguments& with, std::index_sequence<At...>)
{
    kernel(static_cast<Types>(with[At])...);
}

// `kernel` as a program; its threads wait for each other or not.
template <typename... Types>
Program program(bool waits, void (*kernel)(Types...))
{
    return [=](unsigned blocks, unsigned threads, const Arguments& with) {
        assert(with.size() == sizeof...(Types));
        const auto thread = [&] { call(kernel, with, std::index_sequence_for<Types...> {}); };
        waits ? launch(blocks, threads, thread) : launch_in_turn(blocks, threads, thread);
    };
}

inline int run_all(const std::string& folder, const std::map<std::string, Program>& programs)
{
    std::map<std::string, std::unique_ptr<Buffer>> regions;
    std::ifstream lines(folder + "/launches");
    std::string line;
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string name, word;
        unsigned blocks, threads;
        words >> name >> blocks >> threads;
        Arguments with;
        while (words >> word) {
            if (word[0] == '@') {
                std::unique_ptr<Buffer>& region = regions[word];
                if (!region) {
                    region = std::make_unique<Buffer>(folder + "/" + word.substr(1));
                }
                with.push_back({ region.get(), 0 });
            } else {
                with.push_back({ nullptr, std::stoi(word) });
            }
        }
        programs.at(name)(blocks, threads, with);
    }
    for (const auto& region : regions) {
        region.second->save();
    }
    return 0;
}
