import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { github } from '../markdown.mjs'
import { address, base, folders, heading, out, root, url } from '../repository.mjs'

const name = (folder) => folder[0].toUpperCase() + folder.slice(1)

export default defineConfig({
  title: 'guestwire',
  description: 'A virtual machine gets the network of the namespace it runs in',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  base,
  srcDir: root,
  srcExclude: fs
    .readdirSync(root)
    .filter((entry) => entry !== 'README.md' && entry !== 'docs')
    .flatMap((entry) => [entry, entry + '/**']),
  outDir: out,
  cacheDir: path.join(root, 'bin/site.cache'),
  rewrites: { 'README.md': 'index.md' },
  cleanUrls: false,
  // The pages lie outside of this folder, so what they import is looked up as if they lay in it.
  vite: {
    plugins: [
      {
        name: 'guestwire',
        enforce: 'pre',
        resolveId(id) {
          return /^vue($|\/)/.test(id) ? this.resolve(id, path.join(root, 'site/package.json'), { skipSelf: true }) : null
        },
      },
    ],
  },
  markdown: {
    anchor: { slugify: heading },
    config: (markdown) => markdown.use(github),
  },
  themeConfig: {
    outline: [2, 3],
    search: { provider: 'local' },
    socialLinks: [{ icon: 'github', link: url }],
    nav: folders().map(({ name: folder, pages }) => ({
      text: name(folder),
      link: address(pages[0].file),
      activeMatch: `^/docs/${folder}/`,
    })),
    sidebar: folders().map(({ name: folder, pages }) => ({
      text: name(folder),
      collapsed: false,
      items: pages.map(({ file, title }) => ({ text: title, link: address(file) })),
    })),
  },
})
