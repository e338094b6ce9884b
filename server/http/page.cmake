# Makes a page into C: cmake -DPAGE=docs.html -DOUT=docs.inc -P page.cmake puts
# common.css and common.js in the places of @common.css@ and @common.js@, leaves
# out indentation and comments that begin a line (a line of a text that has to
# be indented begins with \x20), and writes docs_bytes, with docs_script and
# docs_style: the hashes by which the Content-Security-Policy of the page allows
# this script and style and no other.

# base64 of 32 bytes in hex
function(base64 hex out)
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(text "")
  foreach(at RANGE 0 60 6)
    string(SUBSTRING "${hex}00" ${at} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${digit} 1 letter)
      string(APPEND text ${letter})
    endforeach()
  endforeach()
  string(SUBSTRING ${text} 0 43 text) # the last byte was not there
  set(${out} "${text}=" PARENT_SCOPE)
endfunction()

# the hash of what stands between <tag> and </tag>
function(hash_of tag html out)
  string(FIND "${html}" "<${tag}>" start)
  string(FIND "${html}" "</${tag}>" end)
  if(start LESS 0 OR end LESS start)
    message(FATAL_ERROR "${PAGE} has no <${tag}>")
  endif()
  string(LENGTH "<${tag}>" length)
  math(EXPR start "${start} + ${length}")
  math(EXPR length "${end} - ${start}")
  string(SUBSTRING "${html}" ${start} ${length} text)
  string(SHA256 hex "${text}")
  base64(${hex} hash)
  set(${out} "sha256-${hash}" PARENT_SCOPE)
endfunction()

file(READ ${PAGE} html)
get_filename_component(folder ${PAGE} DIRECTORY)
foreach(common common.css common.js)
  file(READ ${folder}/${common} text)
  string(REPLACE "@${common}@\n" "${text}" html "${html}")
endforeach()
string(REGEX REPLACE "\n +" "\n" html "${html}")
string(REGEX REPLACE "\n<!--[^>]*-->|\n/\\*[^*]*\\*/" "" html "${html}")
get_filename_component(name ${PAGE} NAME_WE)
hash_of(script "${html}" script)
hash_of(style "${html}" style)
string(HEX "${html}" bytes)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "/* Made by page.cmake. */
#define ${name}_script \"${script}\"
#define ${name}_style \"${style}\"
static const unsigned char ${name}_bytes[] = {
${bytes}};
")
