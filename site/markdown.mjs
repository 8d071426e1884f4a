// A plugin for markdown-it, for what GitHub shows in another way. Links lead to the site's pages where it has them, and to the
// repository elsewhere; a link to a file that is not there is an error. Indented code is code as any other. README's first
// paragraph says what the project is for; three buttons follow it.
import fs from 'node:fs'
import path from 'node:path'
import { address, base, pages, root, url } from './repository.mjs'

export function github(markdown) {
  markdown.core.ruler.push('github', (state) => {
    const file = state.env.realPath ?? state.env.path
    const folder = path.dirname(file)
    if (path.relative(root, file) === 'README.md') {
      start(state)
    }
    for (const token of state.tokens.flatMap((block) => [block, ...(block.children ?? [])])) {
      if (token.type === 'link_open') {
        token.attrSet('href', target(folder, token.attrGet('href')))
      }
      if (token.type === 'code_block') {
        Object.assign(token, { type: 'fence', info: '' })
      }
      // Vite resolves the path of a picture only if it starts with a dot.
      if (token.type === 'html_block' || token.type === 'html_inline') {
        token.content = token.content.replace(/\b(src|srcset)="(?![a-z]+:|[./])/g, '$1="./')
        token.content = token.content.replace(/\bhref="([^"]*)"/g, (_, href) => `href="${whole(target(folder, href))}"`)
      }
    }
  })
}

function start(state) {
  state.tokens.find((token) => token.type === 'paragraph_open').attrJoin('class', 'lead')
  const buttons = new state.Token('html_block', '', 0)
  buttons.content =
    '<div class="start"><a href="docs/tutorials/first-vm.md">Start a first VM</a><a href="#in-go">Use it in Go</a>' +
    '<a href="docs/how-to/install.md">Install the programs</a></div>\n'
  state.tokens.splice(state.tokens.findIndex((token) => token.type === 'paragraph_close') + 1, 0, buttons)
}

function target(folder, href) {
  if (/^([a-z]+:|#)/.test(href)) {
    return href
  }
  const [name, hash] = href.split('#')
  const file = path.relative(root, path.join(folder, decodeURI(name)))
  const found = fs.statSync(path.join(root, file), { throwIfNoEntry: false })
  if (!found) {
    throw new Error(`${path.relative(root, folder)} links to ${href}, which is not there`)
  }
  const anchor = hash ? '#' + hash : ''
  const page = found.isDirectory() ? path.join(file, 'README.md') : file
  if (pages.includes(page)) {
    return address(page) + anchor
  }
  return `${url}/${found.isDirectory() ? 'tree' : 'blob'}/main/${file}${anchor}`
}

// VitePress adds this to the links of Markdown, and not to those of HTML in it.
const whole = (href) => href.replace(/^\/([^#]*)/, (_, page) => base + page.replace(/([^/])$/, '$1.html'))
